#include "support/parallel.hpp"

#include <omp.h>

#include "support/interruption.hpp"
#include "support/thread_pool.hpp"

namespace backpass {

ThreadScope::ThreadScope(int threads) : previous_(omp_get_max_threads()) {
  if (threads > 0) omp_set_num_threads(threads);
}

ThreadScope::~ThreadScope() { omp_set_num_threads(previous_); }

int threads_here() { return detail::ThreadPool::in_chunk() || omp_in_parallel() != 0 ? 1 : omp_get_max_threads(); }

void detail::run_chunks(std::int64_t chunks, RunChunk run, const void* work) {
  const int threads = threads_here();
  if (threads > 1) {
    ThreadPool::instance().run(chunks, threads, run, work);
    return;
  }
  for (std::int64_t c = 0; c < chunks; ++c) {
    check_interruption_in_kernel();
    run(work, c);
  }
}

}  // namespace backpass
