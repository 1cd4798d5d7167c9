// The one way to use threads. OpenMP underneath, so the pool is shared with oneDNN and with torch.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>

namespace backpass {

/// Sets the number of threads used by everything called from this thread, for the life of the object. 0 leaves it
/// alone.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : previous_(omp_get_max_threads()) {
    if (threads > 0) omp_set_num_threads(threads);
  }
  ~ThreadScope() { omp_set_num_threads(previous_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_;
};

namespace detail {

/// Chunks in one run per thread: neighbours stay on one core, and whoever is done takes from the others, so that a
/// thread the system has put aside does not hold up the rest.
class ChunkQueues {
 public:
  ChunkQueues(std::int64_t chunks, int threads)
      : threads_(static_cast<int>(std::min<std::int64_t>(chunks, std::min(threads, kMaxThreads)))) {
    for (int t = 0; t < threads_; ++t) {
      queues_[static_cast<std::size_t>(t)] = {chunks * t / threads_, chunks * (t + 1) / threads_};
    }
  }

  int threads() const { return threads_; }

  template <class F>
  void drain(int thread, const F& f) {
    for (int k = 0; k < threads_; ++k) {
      Queue& q = queues_[static_cast<std::size_t>((thread + k) % threads_)];
      std::atomic_ref<std::int64_t> next(q.next);
      for (std::int64_t c = next.fetch_add(1, std::memory_order_relaxed); c < q.end;
           c = next.fetch_add(1, std::memory_order_relaxed)) {
        f(c);
      }
    }
  }

 private:
  static constexpr int kMaxThreads = 256;
  struct alignas(64) Queue {  // one cache line each: threads count without disturbing each other
    std::int64_t next, end;
  };
  int threads_;
  std::array<Queue, kMaxThreads> queues_;  // only the first threads_ are ever touched
};

}  // namespace detail

/// Calls f(begin, end) over chunks covering [0, n). Chunks hold `grain` items (the last one fewer) whatever the number
/// of threads, so that a result that depends on where chunks begin is still the same for any thread count. Runs inline
/// when one chunk suffices or inside another parallel region. Exceptions from f reach the caller.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  std::int64_t chunks = (n + grain - 1) / grain;
  if (chunks == 1 || omp_in_parallel() != 0 || omp_get_max_threads() == 1) {
    for (std::int64_t c = 0; c < chunks; ++c) f(c * grain, std::min(n, (c + 1) * grain));
    return;
  }
  std::exception_ptr error;
  detail::ChunkQueues queues(chunks, omp_get_max_threads());
#pragma omp parallel num_threads(queues.threads())
  {
    try {
      queues.drain(omp_get_thread_num(), [&](std::int64_t c) { f(c * grain, std::min(n, (c + 1) * grain)); });
    } catch (...) {
#pragma omp critical(backpass_parallel_error)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

/// A grain that makes one chunk worth about `work` elementary operations: parallel_for(rows, grain_for(cols), ...).
inline std::int64_t grain_for(std::int64_t work_per_item, std::int64_t work = 32768) {
  return std::max<std::int64_t>(1, work / std::max<std::int64_t>(1, work_per_item));
}

}  // namespace backpass
