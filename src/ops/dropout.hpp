// What Dropout and its gradients have in common: which elements are kept is a function of (seed, run, node, element).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.hpp"
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

/// Calls f(i, is_kept) for every element, in parallel.
template <class F>
void for_each_element(const Philox& random, double ratio, std::int64_t n, F&& f) {
  constexpr std::int64_t kGrain = 1 << 13;  // a multiple of the four elements that share a block of random bits
  auto threshold = static_cast<std::uint64_t>(ratio * 0x1p32);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Philox::Block bits{};
    for (std::int64_t i = begin; i < end; ++i) {
      if (i % 4 == 0) bits = random.block(static_cast<std::uint64_t>(i) / 4);
      f(i, bits[static_cast<std::size_t>(i % 4)] >= threshold);
    }
  });
}

}  // namespace backpass::dropout
