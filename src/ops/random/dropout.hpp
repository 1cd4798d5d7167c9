// What Dropout and its gradients have in common: which elements are kept is a function of (seed, run, node, element).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "graph/op.hpp"
#include "ops/random/dropout_kernel.hpp"
#include "support/convert.hpp"
#include "support/half.hpp"
#include "support/kernel.hpp"
#include "support/random_seed.hpp"

namespace backpass::dropout {

inline constexpr double kDefaultRatio = 0.5;

/// Inputs (data, ratio, training_mode, ...), outputs (y, mask).
void infer(InferContext& c);

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

/// y = x, of so many bytes; the mask (null: not wanted) has n elements.
inline void keep_everything(const KernelArgs& a, std::size_t bytes, bool* mask, std::int64_t n) {
  if (a.outputs[0] != a.inputs[0]) std::memcpy(a.outputs[0], a.inputs[0], bytes);
  if (mask != nullptr) std::fill_n(mask, n, true);
}

inline constexpr std::int64_t kBatch = 512;  // elements drawn at a time

/// y[i] = kept[i] ? x[i] * scale : 0 for up to kBatch elements; y may be x.
template <class T>
void keep_some(const bool* kept, std::int64_t n, double scale, const T* x, T* y) {
  if constexpr (std::is_floating_point_v<T>) {
    keep_where(kept, n, static_cast<T>(scale), x, y);
  } else {
    constexpr DType kType = std::is_same_v<T, Half> ? DType::float16 : DType::bfloat16;
    float wide[kBatch];
    convert_loop(kType, DType::float32)(x, wide, n);
    keep_where(kept, n, static_cast<float>(scale), wide, wide);
    convert_loop(DType::float32, kType)(wide, y, n);
  }
}

/// What Dropout makes of n neighbours, of which the first is element `first` of the whole tensor. y may be x, and mask
/// null.
template <class T>
void drop(const Philox& random, double ratio, std::int64_t first, std::int64_t n, const T* x, T* y, bool* mask) {
  constexpr std::int64_t kWhole = 64;  // as many as the widest vectors draw at a time
  const double scale = 1 / (1 - ratio);
  std::int64_t count = 0;
  if constexpr (std::is_same_v<T, float>) {
    if (mask == nullptr && first % 4 == 0) {
      count = n - n % kWhole;
      keep_scaled(random, first, count, threshold(ratio), static_cast<float>(scale), x, y);
    }
  }
  bool room[kBatch + 3];
  for (std::int64_t i = count; i < n; i += count) {
    const std::int64_t lead = (first + i) % 4;
    count = std::min(kBatch - lead, n - i);
    const bool* kept = draw_kept(random, first + i, count, threshold(ratio), room);
    keep_some(kept, count, scale, x + i, y + i);
    if (mask != nullptr) std::copy_n(kept, count, mask + i);
  }
}

}  // namespace backpass::dropout
