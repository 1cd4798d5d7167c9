// How near recorded steps came to what the machine can do: its roofline.
//
//   SessionOptions options;
//   options.profile = true;
//   ...                                     // run the session
//   auto records = session.take_profile();
//   auto found = backpass::summarize(records, backpass::machine_limits(), backpass::ProfileRows::by_operator);
//   found.limit_us / found.duration_us      // the part of the time that was needed
//
// A step can neither compute faster than products of large matrices, nor read and write its operands faster than a
// copy does. The longer of the two is its limit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"

namespace backpass {

/// What a machine can do with some number of threads.
struct MachineLimits {
  /// Caches are faster than memory, so the rate depends on how much is read and written.
  struct Memory {
    std::int64_t bytes = 0;  ///< holds up to so many, the last one for all beyond, too
    double gbs = 0;          ///< 10^9 bytes a second, what is read and what is written together
  };

  int threads = 0;             ///< 0: not measured, but told
  double gflops = 0;           ///< 10^9 operations a second, of float32 products
  std::vector<Memory> memory;  ///< from few bytes to many

  /// The rate at which so many bytes can be read and written; 0 when nothing is known.
  double gbs(std::int64_t bytes) const;
  double arithmetic_us(std::int64_t flops) const;
  double memory_us(std::int64_t bytes) const;
  std::string text() const;  ///< "112.2 GF/s, 98.0 to 40.4 GB/s, 1 thread"
};

/// Measures this machine: the best rate of a product of square matrices, and of copying and adding up arrays in each
/// cache and in memory. Takes about 0.2 s for each number of threads, once per process. 0: as many as a session would
/// use. A busy machine looks slower than it is.
MachineLimits machine_limits(int threads = 0);

/// The limits of a machine that somebody knows; what is 0 is measured.
MachineLimits told_limits(double gflops, double gbs, int threads = 0);

/// What StepRecords of one kind come to.
struct ProfileRow {
  std::string op;
  std::string shapes;  ///< empty for rows by operator
  int calls = 0;
  double duration_us = 0;
  double arithmetic_us = 0;  ///< what the arithmetic alone takes at least
  double memory_us = 0;      ///< what reading and writing alone take at least
  double limit_us = 0;       ///< the longer of the two, step by step
  double flops = 0;
  double bytes = 0;
};

struct ProfileSummary {
  std::vector<ProfileRow> rows;  ///< what takes longest first
  double duration_us = 0;        ///< of all steps
  double limit_us = 0;           ///< what they would take if each reached its limit
};

enum class ProfileRows : std::uint8_t { by_operator, by_shapes };

ProfileSummary summarize(std::span<const StepRecord> records, const MachineLimits& limits, ProfileRows rows);

}  // namespace backpass
