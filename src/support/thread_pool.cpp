#include "support/thread_pool.hpp"

#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "support/interruption.hpp"

namespace backpass::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A caller whose helpers are not done keeps its core so long: most are. Then it sleeps, which also gives the system
// a free core for a helper that waits for one.
constexpr microseconds kWaitForHelpers{20};
// A thread without work keeps its core so long: the next job of the same run mostly comes before that.
constexpr microseconds kWaitForJobs{50};
// Between two looks at the clock.
constexpr int kLooks = 32;
// Longer than helpers take that have a core.
constexpr microseconds kLongWait{200};
// Where cores are contended: how long a job has to be for helpers to pay, and for how long to believe it. That costs
// about what it saves at first, since most who take a core are soon gone; twice as long each time it proves true, up to
// where waiting costs a few parts in a hundred.
constexpr microseconds kLongJob{300};
constexpr int kWaitsToBelieve = 2;
// A wait is the neighbour's share where it took that part of the time since the one before: one of milliseconds now and
// then costs less than doing without helpers.
constexpr int kShareToBelieve = 4;
constexpr milliseconds kLongestBelief{200};
// A belief that ended so many times its length ago says nothing about now.
constexpr int kBeliefsToForget = 8;

thread_local bool is_in_chunk = false;  // NOLINT: a property of the thread

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Whether another thread had this one's core since it was asked last.
bool has_lost_core() {
  thread_local long before = 0;
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return std::exchange(before, usage.ru_nivcsw) != usage.ru_nivcsw;
}

/// Looks until `is_done` or for so long. Whether it was.
template <class F>
bool look_for(microseconds time, const F& is_done) {
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (is_done()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

void ChunkQueues::fill(std::int64_t chunks, int threads) {
  threads_ = static_cast<int>(std::min<std::int64_t>({chunks, threads, kMaxThreads}));
  for (int t = 0; t < threads_; ++t) {
    Queue& q = queues_[static_cast<std::size_t>(t)];
    q.next.store(chunks * t / threads_, std::memory_order_relaxed);
    q.end = chunks * (t + 1) / threads_;
  }
}

void JobSlot::post(std::int64_t chunks, int threads, RunChunk run, const void* work) {
  run_ = run;
  work_ = work;
  mode_ = FloatMode::of_this_thread();
  failed_.store(false, std::memory_order_relaxed);
  is_contended_.store(false, std::memory_order_relaxed);
  queues_.fill(chunks, threads);
  state_.store(static_cast<std::uint32_t>(queues_.threads() - 1) * kPlace, std::memory_order_relaxed);
}

void JobSlot::open() { state_.fetch_or(kOpen, std::memory_order_release); }

Clock::duration JobSlot::wait_for_helpers() {
  auto is_empty = [this] { return (state_.load(std::memory_order_acquire) & kInside) == 0; };
  if (is_empty()) return {};
  const Clock::time_point start = Clock::now();
  if (look_for(kWaitForHelpers, is_empty)) return {};
  state_.fetch_or(kCallerSleeps, std::memory_order_relaxed);
  std::uint32_t state = state_.load(std::memory_order_acquire);
  for (; (state & kInside) != 0; state = state_.load(std::memory_order_acquire)) {
    state_.wait(state, std::memory_order_acquire);
  }
  return is_contended_.load(std::memory_order_relaxed) ? Clock::now() - start : Clock::duration{};
}

void JobSlot::rethrow() {
  if (!failed_.load(std::memory_order_relaxed)) return;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

bool JobSlot::help(int thread) {
  if (!enter()) return false;
  {
    const FloatScope as_the_caller(mode_);
    work(thread, [] {});
  }
  leave();
  return true;
}

bool JobSlot::enter() {
  std::uint32_t state = state_.load(std::memory_order_relaxed);
  while ((state & kOpen) != 0 && (state & kPlaces) != 0) {
    if (state_.compare_exchange_weak(state, state - kPlace + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

/// Nothing is left to take, so that nobody need enter any more.
void JobSlot::leave() {
  std::uint32_t state = state_.load(std::memory_order_relaxed);
  if ((state & kCallerSleeps) != 0 && has_lost_core()) is_contended_.store(true, std::memory_order_relaxed);
  while (!state_.compare_exchange_weak(state, (state & ~kOpen) - 1, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  if ((state & kCallerSleeps) != 0) state_.notify_one();
}

namespace {

// Never destroyed by the language: a forked child replaces it, and callers may outlive it.
alignas(ThreadPool) std::byte storage[sizeof(ThreadPool)];  // NOLINT

ThreadPool& made_pool() {
  static ThreadPool* const pool = new (storage) ThreadPool;
  return *pool;
}

/// A child of fork has none of the threads, and maybe locks that nobody will open.
void replace_in_child() { new (storage) ThreadPool; }

/// libgomp's threads end before a fork; parent and child start new ones when they need some. A child that inherits
/// them waits for threads that it does not have.
void end_openmp_threads() { omp_pause_resource_all(omp_pause_soft); }

/// From the moment the library is loaded, since oneDNN may use threads before we do, until it is unloaded.
const struct AtForkAndExit {
  AtForkAndExit() {
    made_pool();
    pthread_atfork(end_openmp_threads, nullptr, replace_in_child);
  }
  ~AtForkAndExit() { made_pool().stop(); }
} kHandlers;

}  // namespace

ThreadPool& ThreadPool::instance() { return made_pool(); }

bool ThreadPool::in_chunk() { return is_in_chunk; }

JobSlot* ThreadPool::take_slot() {
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (!slots_[i].take()) continue;
    std::size_t used = used_slots_.load(std::memory_order_relaxed);
    while (used <= i && !used_slots_.compare_exchange_weak(used, i + 1, std::memory_order_relaxed)) {
    }
    return &slots_[i];
  }
  return nullptr;
}

void ThreadPool::run(std::int64_t chunks, int threads, RunChunk run_chunk, const void* work) {
  JobSlot* const slot = take_slot();
  if (slot == nullptr) {
    for (std::int64_t c = 0; c < chunks; ++c) run_chunk(work, c);
    return;
  }
  struct GiveBack {
    JobSlot* slot;
    ~GiveBack() { slot->give_back(); }
  };
  const GiveBack give_back{slot};
  slot->post(chunks, threads, run_chunk, work);
  run(*slot, static_cast<int>(std::min<std::int64_t>(chunks, threads)) - 1);
  slot->rethrow();
}

void ThreadPool::run(JobSlot& slot, int helpers) {
  const Clock::time_point start = Clock::now();
  bool is_open = start.time_since_epoch().count() >= contended_until_.load(std::memory_order_relaxed);
  if (is_open) open(slot, helpers);
  const ThreadScope alone(1);
  is_in_chunk = true;
  slot.work_and_close([&] {
    check_interruption_in_kernel();
    if (is_open || Clock::now() - start < kLongJob) return;
    is_open = true;
    open(slot, helpers);
  });
  is_in_chunk = false;
  note_wait(start, slot.wait_for_helpers());
}

void ThreadPool::open(JobSlot& slot, int helpers) {
  grow(helpers);
  slot.open();
  posts_.fetch_add(1, std::memory_order_seq_cst);
  const int wanted = std::min(helpers, workers_.load(std::memory_order_relaxed));
  for (int missing = wanted - awake_.load(std::memory_order_seq_cst); missing > 0; --missing) posts_.notify_one();
}

void ThreadPool::note_wait(Clock::time_point start, Clock::duration wait) {
  if (wait < kLongWait) return;
  const Clock::duration now = Clock::now().time_since_epoch();
  if (wait < now - start.time_since_epoch() - wait) return;  // most of the time went into work
  const Clock::duration last{last_belief_.load(std::memory_order_relaxed)};
  const Clock::duration trusted{contended_until_.load(std::memory_order_relaxed)};
  const Clock::duration waited{last_long_wait_.exchange(now.count(), std::memory_order_relaxed)};
  if (kShareToBelieve * wait < now - std::max(trusted, waited)) return;
  const Clock::duration since = now - trusted;
  const Clock::duration wanted = since < kBeliefsToForget * last ? 2 * last : kWaitsToBelieve * wait;
  const Clock::duration belief = std::min<Clock::duration>(wanted, kLongestBelief);
  last_belief_.store(belief.count(), std::memory_order_relaxed);
  contended_until_.store((now + belief).count(), std::memory_order_relaxed);
}

void ThreadPool::grow(int workers) {
  static const int most = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
  workers = std::min(workers, most);
  if (workers_.load(std::memory_order_relaxed) >= workers || stopped_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(growing_);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    while (static_cast<int>(threads_.size()) < workers && !stopped_.load(std::memory_order_relaxed)) {
      const int number = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back([this, number] { work(number); });
    }
    workers_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  } catch (const std::system_error&) {  // no more threads to be had: those there are do
    workers_.store(ChunkQueues::kMaxThreads, std::memory_order_relaxed);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::work(int thread) {
  omp_set_num_threads(1);
  is_in_chunk = true;
  awake_.fetch_add(1, std::memory_order_relaxed);
  while (!stopped_.load(std::memory_order_relaxed)) {
    const std::uint32_t seen = posts_.load(std::memory_order_seq_cst);
    bool helped = false;
    const std::size_t used = used_slots_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < used; ++i) helped = slots_[i].help(thread) || helped;
    if (!helped && !spin(seen)) sleep(seen);
  }
}

bool ThreadPool::spin(std::uint32_t seen) {
  return look_for(kWaitForJobs, [&] { return posts_.load(std::memory_order_relaxed) != seen; });
}

void ThreadPool::sleep(std::uint32_t seen) {
  awake_.fetch_sub(1, std::memory_order_seq_cst);
  posts_.wait(seen, std::memory_order_seq_cst);
  awake_.fetch_add(1, std::memory_order_seq_cst);
}

void ThreadPool::stop() {
  const std::lock_guard lock(growing_);
  stopped_.store(true);
  posts_.fetch_add(1);
  posts_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

}  // namespace backpass::detail
