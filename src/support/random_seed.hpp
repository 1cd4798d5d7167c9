// Where random operators get their numbers: a function of (seed, run, node, element), so nothing needs to be stored,
// any number of threads gives the same, and a run can be repeated from its number.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "support/philox.hpp"

namespace backpass {

/// Every RandomSource that was not given a seed of its own gets one from this, the n-th to ask always the same, and
/// counts its runs from 0 again. Without a call it is a fixed number.
void set_random_seed(std::uint64_t seed);

/// Whether it was called.
bool is_random_seed_set();

/// Which numbers one run draws.
struct RandomRun {
  std::uint64_t seed = 0;
  std::uint64_t run = 0;
};

/// Counts the runs of one session.
class RandomSource {
 public:
  RandomRun next();         ///< and counts one run
  RandomRun peek() const;   ///< what next() would give
  void restore(RandomRun);  ///< from here on independent of set_random_seed

 private:
  void follow_global_seed() const;

  mutable std::mutex mutex_;
  mutable RandomRun upcoming_;
  mutable std::uint64_t epoch_ = 0;  // of the global seed that upcoming_ follows
  bool is_own_ = false;
};

/// Random operators called from this thread, for the life of the object, belong to one run.
class RandomScope {
 public:
  explicit RandomScope(RandomSource& source) : RandomScope(source.next()) {}
  explicit RandomScope(RandomRun run);  ///< a run that goes on, or is repeated
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  RandomRun previous_;
  std::uint64_t previous_entries_;
  std::uint64_t previous_entry_;
  bool had_previous_;
};

/// To be alive while a subgraph runs: iterations of a loop draw different numbers, and what stands around the loop
/// draws the same before and after it.
class SubgraphScope {
 public:
  SubgraphScope();
  ~SubgraphScope();
  SubgraphScope(const SubgraphScope&) = delete;
  SubgraphScope& operator=(const SubgraphScope&) = delete;

 private:
  std::uint64_t outer_;
};

/// The random numbers of one operator. With a seed of its own they do not depend on the session's.
class RandomStream {
 public:
  RandomStream(std::optional<std::uint64_t> seed, std::string_view node);
  /// The numbers for the run at hand (outside of any RandomScope: of the next run of the process).
  Philox next() const;

 private:
  std::optional<std::uint64_t> seed_;
  std::uint64_t node_;
};

}  // namespace backpass
