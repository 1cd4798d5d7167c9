// The one way to use threads: work in chunks, which threads of a pool help the caller with if they come in time.
//
// The caller never waits for a thread that has not begun: whatever nobody has taken, it does itself. So a thread whose
// core is busy with another program costs nothing. docs/threads.md says why this is not OpenMP, and what was measured.
#pragma once

#include <algorithm>
#include <cstdint>

namespace backpass {

/// Sets the number of threads used by everything called from this thread, oneDNN included, for the life of the object.
/// 0 leaves it alone: as many as OpenMP would use.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_;
};

/// How many threads a parallel_for called here may use: 1 inside a chunk.
int threads_here();

namespace detail {

using RunChunk = void (*)(const void* work, std::int64_t chunk);

/// Calls run(work, c) once for each c in [0, chunks).
void run_chunks(std::int64_t chunks, RunChunk run, const void* work);

}  // namespace detail

/// Calls f(begin, end) over chunks covering [0, n). Chunks hold `grain` items (the last one fewer) whatever the number
/// of threads, so that a result that depends on where chunks begin is still the same for any thread count. Runs inline
/// when one chunk suffices or inside another chunk. Exceptions from f reach the caller. Between chunks the caller
/// notices that its run was cancelled (see support/interruption.hpp), which throws, too.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (n <= grain) {
    f(std::int64_t{0}, n);
    return;
  }
  struct Work {
    const F& f;
    std::int64_t n, grain;
  };
  const Work work{f, n, grain};
  detail::run_chunks((n - 1) / grain + 1,
                     [](const void* w, std::int64_t chunk) {
                       const Work& all = *static_cast<const Work*>(w);
                       all.f(chunk * all.grain, std::min(all.n, (chunk + 1) * all.grain));
                     },
                     &work);
}

/// A grain that makes one chunk worth about `work` elementary operations: parallel_for(rows, grain_for(cols), ...).
inline std::int64_t grain_for(std::int64_t work_per_item, std::int64_t work = 32768) {
  return std::max<std::int64_t>(1, work / std::max<std::int64_t>(1, work_per_item));
}

}  // namespace backpass
