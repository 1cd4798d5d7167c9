// The threads behind parallel_for.
//
// A caller posts a job and works on it. Threads of the pool that see it in time enter it and take chunks; when none is
// left, the job is closed and the caller waits for those inside, nobody else. A waiting thread keeps its core for some
// microseconds, since the next job usually follows the last closely, then sleeps until it is woken.
//
// A thread that has lost its core with a chunk in its hands is the one thing left to wait for. Where that took longer
// than the job itself, others want the cores, and for a while only jobs that prove to be long are opened to threads:
// longer each time that happens again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "support/float_mode.hpp"
#include "support/parallel.hpp"

namespace backpass::detail {

using Clock = std::chrono::steady_clock;

/// Chunks in one run per thread: neighbours stay on one core, and whoever is done takes from the others.
class ChunkQueues {
 public:
  static constexpr int kMaxThreads = 256;

  void fill(std::int64_t chunks, int threads);
  int threads() const { return threads_; }

  /// Takes chunks until none is left, beginning with those of `thread`.
  template <class F>
  void drain(int thread, const F& f) {
    for (int k = 0; k < threads_; ++k) {
      Queue& q = queues_[static_cast<std::size_t>((thread + k) % threads_)];
      for (std::int64_t c = q.next.fetch_add(1, std::memory_order_relaxed); c < q.end;
           c = q.next.fetch_add(1, std::memory_order_relaxed)) {
        if (!f(c)) return;
      }
    }
  }

 private:
  struct alignas(64) Queue {  // one cache line each: threads count without disturbing each other
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  int threads_ = 0;
  std::array<Queue, kMaxThreads> queues_;  // only the first threads_ are ever touched
};

/// A place where one caller at a time posts its job. Lives as long as the pool, so that a thread that is late may
/// look at it safely.
class JobSlot {
 public:
  bool take() { return !taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire); }
  void give_back() { taken_.store(false, std::memory_order_release); }

  /// A job that nobody enters before it is opened.
  void post(std::int64_t chunks, int threads, RunChunk run, const void* work);
  void open();

  /// The caller's part: `before_chunk` is called before each chunk that it does itself. When this is over, nobody
  /// enters any more.
  template <class F>
  void work_and_close(const F& before_chunk) {
    work(0, before_chunk);
    state_.fetch_and(~kOpen, std::memory_order_relaxed);
  }
  /// Until nobody is inside. How long that took, where somebody else had a helper's core; zero otherwise.
  Clock::duration wait_for_helpers();
  /// What a chunk threw, if one did.
  void rethrow();

  /// A thread's part. False when there was nothing to enter.
  bool help(int thread);

 private:
  // Parts of the state: whether the job may be entered, whether its caller sleeps, how many may still enter, how many
  // are inside.
  static constexpr std::uint32_t kOpen = 1U << 31;
  static constexpr std::uint32_t kCallerSleeps = 1U << 30;
  static constexpr std::uint32_t kPlace = 1U << 12;
  static constexpr std::uint32_t kPlaces = 0x3ffU * kPlace;
  static constexpr std::uint32_t kInside = kPlace - 1;

  bool enter();
  void leave();

  template <class F>
  void work(int thread, const F& before_chunk) {
    try {
      queues_.drain(thread % queues_.threads(), [&](std::int64_t chunk) {
        if (failed_.load(std::memory_order_relaxed)) return false;
        before_chunk();
        run_(work_, chunk);
        return true;
      });
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    }
  }

  std::atomic<bool> taken_ = false;
  alignas(64) std::atomic<std::uint32_t> state_ = 0;
  RunChunk run_ = nullptr;
  const void* work_ = nullptr;
  FloatMode mode_ = FloatMode::of_this_thread();  // the caller's: others calculate as it does
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_contended_ = false;
  std::exception_ptr error_;
  ChunkQueues queues_;
};

class ThreadPool {
 public:
  static ThreadPool& instance();

  /// Whether the calling thread is inside a chunk.
  static bool in_chunk();

  /// Calls run(work, c) for each c in [0, chunks), on up to so many threads.
  void run(std::int64_t chunks, int threads, RunChunk run, const void* work);
  /// Ends the threads. Jobs posted later are done by their callers.
  void stop();

 private:
  static constexpr std::size_t kSlots = 32;

  JobSlot* take_slot();
  void run(JobSlot& slot, int helpers);
  void open(JobSlot& slot, int helpers);
  void note_wait(Clock::time_point start, Clock::duration wait);
  void grow(int workers);
  void work(int thread);
  bool spin(std::uint32_t seen);
  void sleep(std::uint32_t seen);

  std::array<JobSlot, kSlots> slots_;
  std::atomic<std::size_t> used_slots_ = 0;  // those after them never held a job
  alignas(64) std::atomic<std::uint32_t> posts_ = 0;
  alignas(64) std::atomic<int> awake_ = 0;  // threads that look for jobs without being woken
  std::atomic<Clock::rep> contended_until_ = 0, last_belief_ = 0, last_long_wait_ = 0;
  std::atomic<int> workers_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex growing_;
  std::vector<std::thread> threads_;
};

}  // namespace backpass::detail
