// What Dropout and its gradients have in common: which elements are kept is a function of (seed, run, node, element).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.hpp"
#include "ops/random/dropout_kernel.hpp"
#include "support/parallel.hpp"
#include "support/random_seed.hpp"

namespace backpass::dropout {

inline constexpr double kDefaultRatio = 0.5;

inline double checked_ratio(double ratio, const std::string& where) {
  if (!(ratio >= 0 && ratio < 1)) fail(where, " ratio: got ", ratio, ", expected [0, 1)");
  return ratio;
}

inline std::optional<std::uint64_t> seed_of(const Node& node) {
  if (!node.has_attribute("seed")) return std::nullopt;
  return static_cast<std::uint64_t>(node.attr_int("seed", 0));
}

/// Names the random numbers of a Dropout node among those of a run.
inline const std::string& stream_name(const Node& node) {
  return node.name.empty() && node.output(0) != nullptr ? node.output(0)->name : node.name;
}

inline constexpr std::int64_t kGrain = 1 << 13;  // a multiple of the four elements that share a block of random bits

/// An element is kept when its random bits are at least this.
inline std::uint32_t threshold(double ratio) { return static_cast<std::uint32_t>(ratio * 0x1p32); }

/// Calls f(i, is_kept) for every element, in parallel.
template <class F>
void for_each_element(const Philox& random, double ratio, std::int64_t n, const F& f) {
  constexpr std::int64_t kBatch = 512;
  const std::uint32_t least = threshold(ratio);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t bits[kBatch];
    for (std::int64_t at = begin; at < end; at += kBatch) {
      const std::int64_t count = std::min(kBatch, end - at);
      philox_bits(random, at, count, bits);
      for (std::int64_t i = 0; i < count; ++i) f(at + i, bits[i] >= least);
    }
  });
}

/// y[i] = is_kept ? x[i] * scale : 0, in parallel.
inline void keep_all_scaled(const Philox& random, double ratio, std::int64_t n, float scale, const float* x, float* y) {
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    keep_scaled(random, begin, end - begin, threshold(ratio), scale, x + begin, y + begin);
  });
}

}  // namespace backpass::dropout
