// parallel_for: every chunk once, whoever comes; errors, nesting, several callers, forks, cancelled runs.
#include "support/parallel.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backpass/cancel.hpp"
#include "support/float_mode.hpp"
#include "support/interruption.hpp"

namespace backpass {
namespace {

using namespace std::chrono_literals;

/// How often each of n items was done.
std::vector<int> counted(std::int64_t n, std::int64_t grain) {
  std::vector<int> counts(static_cast<std::size_t>(n));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++counts[static_cast<std::size_t>(i)];
  });
  return counts;
}

TEST(Parallel, DoesEachItemOnce) {
  for (int threads : {1, 2, 3, 8, 300}) {
    const ThreadScope scope(threads);
    for (std::int64_t n : {0, 1, 2, 7, 100, 1000}) {
      for (std::int64_t grain : {-1, 0, 1, 3, 5000}) {
        EXPECT_EQ(counted(n, grain), std::vector<int>(static_cast<std::size_t>(n), 1)) << threads << " threads";
      }
    }
  }
}

TEST(Parallel, ManyShortJobs) {
  const ThreadScope scope(4);
  std::int64_t sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::atomic<std::int64_t> part = 0;
    parallel_for(5, 1, [&](std::int64_t begin, std::int64_t) { part += begin; });
    sum += part;
  }
  EXPECT_EQ(sum, 200'000);
}

TEST(Parallel, ThreadsComeToHelp) {
  const ThreadScope scope(2);
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  for (int attempt = 0; attempt < 20 && !met; ++attempt) {
    parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      for (int i = 0; i < 1000 && inside < 2; ++i) std::this_thread::sleep_for(100us);
      if (inside == 2) met = true;
      std::this_thread::sleep_for(1ms);
      --inside;
    });
  }
  EXPECT_TRUE(met);
}

/// Of many chunks, each on a thread that has time for it, how many find half of the smallest normal number to be zero.
int chunks_that_flush() {
  const ThreadScope scope(4);
  std::atomic<int> count = 0;
  parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
    volatile float tiny = std::numeric_limits<float>::min();
    tiny = tiny / 2;
    if (tiny == 0) ++count;
    std::this_thread::sleep_for(100us);
  });
  return count;
}

TEST(Parallel, ThreadsCalculateAsTheirCaller) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(chunks_that_flush(), 0);
    const TinyAsZero tiny;
    EXPECT_EQ(chunks_that_flush(), 64);
  }
}

TEST(Parallel, NobodyWaitsForThreadsThatDoNotCome) {
  std::atomic<bool> release = false;
  std::atomic<int> held = 0;
  std::thread other([&] {  // keeps as many threads of the pool as there are
    const ThreadScope scope(64);
    parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
      ++held;
      while (!release) std::this_thread::sleep_for(1ms);
    });
  });
  while (held < 2) std::this_thread::sleep_for(1ms);
  const ThreadScope scope(4);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(counted(100, 1), std::vector<int>(100, 1));
  EXPECT_FALSE(release);
  release = true;
  other.join();
}

TEST(Parallel, ErrorsReachTheCaller) {
  for (int threads : {1, 2, 4}) {
    const ThreadScope scope(threads);
    for (std::int64_t bad : {0, 7, 99}) {
      auto work = [&](std::int64_t begin, std::int64_t) {
        if (begin == bad) throw std::runtime_error("chunk");
      };
      EXPECT_THROW(parallel_for(100, 1, work), std::runtime_error);
      EXPECT_EQ(counted(100, 1), std::vector<int>(100, 1));
    }
  }
}

TEST(Parallel, InsideOfAChunkRunsInline) {
  const ThreadScope scope(4);
  EXPECT_EQ(threads_here(), 4);
  std::atomic<int> total = 0;
  parallel_for(8, 1, [&](std::int64_t, std::int64_t) {
    EXPECT_EQ(threads_here(), 1);
    EXPECT_EQ(omp_get_max_threads(), 1);  // for oneDNN
    const std::thread::id self = std::this_thread::get_id();
    parallel_for(10, 1, [&](std::int64_t, std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++total;
    });
  });
  EXPECT_EQ(total, 80);
  EXPECT_EQ(threads_here(), 4);
}

TEST(Parallel, ScopesNest) {
  const ThreadScope outer(3);
  {
    const ThreadScope inner(2);
    EXPECT_EQ(threads_here(), 2);
    const ThreadScope same(0);
    EXPECT_EQ(threads_here(), 2);
  }
  EXPECT_EQ(threads_here(), 3);
}

TEST(Parallel, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int c = 0; c < 40; ++c) {  // more than there are places for
    callers.emplace_back([&, c] {
      const ThreadScope scope(1 + c % 4);
      for (int i = 0; i < 100; ++i) wrong += counted(50, 1) != std::vector<int>(50, 1);
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Parallel, StopsBetweenChunks) {
  for (int threads : {1, 2}) {
    const ThreadScope scope(threads);
    CancelFlag flag;
    const InterruptionScope stop(&flag, 0);
    std::atomic<int> done = 0;
    auto work = [&](std::int64_t, std::int64_t) {
      if (++done == 5) flag.set();
      std::this_thread::sleep_for(1ms);
    };
    EXPECT_THROW(parallel_for(1000, 1, work), Cancelled);
    EXPECT_LT(done, 1000);
    const Uninterrupted whole;
    EXPECT_EQ(counted(100, 1), std::vector<int>(100, 1));
  }
}

TEST(Interruption, LimitsOfCallersCount) {
  const InterruptionScope outer(nullptr, 0.02);
  const InterruptionScope inner(nullptr, 100);
  check_interruption();
  std::this_thread::sleep_for(50ms);
  EXPECT_THROW(check_interruption(), Cancelled);
}

TEST(Interruption, AsksNowAndThen) {
  static int asked;
  asked = 0;
  const InterruptionScope scope(+[] { ++asked; });
  const auto end = std::chrono::steady_clock::now() + 350ms;
  while (std::chrono::steady_clock::now() < end) check_interruption();
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 4);
}

#if !BACKPASS_SANITIZED  // ThreadSanitizer refuses threads in children of a process that has some
/// Forks; whether the child's `work` ended in time.
template <class F>
bool works_in_child(const F& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends a child that hangs
    work();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Parallel, WorksInAForkedChild) {
  const ThreadScope scope(3);
  EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1));
  EXPECT_TRUE(works_in_child([] {
    EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1));
    EXPECT_TRUE(works_in_child([] { EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1)); }));
  }));
  EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1));
}

TEST(Parallel, OpenMPWorksInAForkedChild) {
  auto sum = [] {
    int total = 0;
#pragma omp parallel num_threads(3) reduction(+ : total)
    total += 1 + omp_get_thread_num();
    return total;
  };
  const ThreadScope scope(3);
  EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1));
  EXPECT_EQ(sum(), 6);
  EXPECT_TRUE(works_in_child([&] { EXPECT_EQ(sum(), 6); }));
  EXPECT_EQ(sum(), 6);
}

TEST(Parallel, ForksWhileOthersWork) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    const ThreadScope scope(2);
    while (!stop) counted(200, 1);
  });
  const ThreadScope scope(2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(works_in_child([] { EXPECT_EQ(counted(1000, 1), std::vector<int>(1000, 1)); }));
  }
  stop = true;
  other.join();
}
#endif

}  // namespace
}  // namespace backpass
