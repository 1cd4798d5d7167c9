// The weights of a linear loss (linear_loss.hpp) as its products read them: as they are stored, or some classes at a
// time converted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/losses/linear_loss_workspace.hpp"
#include "support/convert.hpp"
#include "support/parallel.hpp"

namespace backpass {

template <class T>
inline constexpr DType float_type = sizeof(T) == sizeof(float) ? DType::float32 : DType::float64;

template <class T>
struct MatrixView {
  const T* data;
  std::int64_t ld;
};

template <class T>
class LossWeights {
 public:
  LossWeights(const LinearLossShape& shape, const StoredWeight& stored, const Workspace<T>& work)
      : s_(shape), stored_(stored), w_(work) {}

  /// Where a class begins, and how far its features and the lines of the matrix are apart.
  std::int64_t offset(std::int64_t begin) const { return s_.classes_first ? begin * s_.features : begin; }
  std::int64_t feature_stride() const { return s_.classes_first ? 1 : s_.classes; }
  std::int64_t ld() const { return std::max<std::int64_t>(1, s_.classes_first ? s_.features : s_.classes); }

  /// The weights of these classes: [classes, features] or [features, classes].
  MatrixView<T> at(std::int64_t begin, std::int64_t end) const {
    if (!s_.converts_weight) return {static_cast<const T*>(stored_.data) + offset(begin), ld()};
    const std::int64_t lines = s_.classes_first ? end - begin : s_.features;
    const std::int64_t length = s_.classes_first ? s_.features : end - begin;
    parallel_for(lines, grain_for(4 * length), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        convert_weight(offset(begin) + i * ld(), length, w_.weight + i * length);
      }
    });
    return {w_.weight, std::max<std::int64_t>(1, length)};
  }

  /// The same as bfloat16.
  MatrixView<std::uint16_t> narrow(std::int64_t begin, std::int64_t end) const {
    const auto* from = static_cast<const std::byte*>(stored_.data) + byte_size(stored_.dtype, offset(begin));
    if (stored_.dtype == DType::bfloat16) return {reinterpret_cast<const std::uint16_t*>(from), ld()};
    const std::int64_t lines = s_.classes_first ? end - begin : s_.features;
    const std::int64_t length = s_.classes_first ? s_.features : end - begin;
    const ConvertLoop convert = convert_loop(stored_.dtype, DType::bfloat16);
    parallel_for(lines, grain_for(4 * length), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        convert(from + byte_size(stored_.dtype, i * ld()), w_.narrow_weight + i * length, length);
      }
    });
    return {w_.narrow_weight, std::max<std::int64_t>(1, length)};
  }

 private:
  /// Elements of the stored weight from `at` on.
  void convert_weight(std::int64_t at, std::int64_t count, T* to) const {
    constexpr std::int64_t kPiece = 1024;
    const auto* from = static_cast<const std::byte*>(stored_.data) + byte_size(stored_.dtype, at);
    if (stored_.rounded == DType::undefined) return convert_loop(stored_.dtype, float_type<T>)(from, to, count);
    std::uint64_t rounded[kPiece];
    for (std::int64_t i = 0; i < count; i += kPiece) {
      const std::int64_t n = std::min(kPiece, count - i);
      convert_loop(stored_.dtype, stored_.rounded)(from + byte_size(stored_.dtype, i), rounded, n);
      convert_loop(stored_.rounded, float_type<T>)(rounded, to + i, n);
    }
  }

  const LinearLossShape& s_;
  const StoredWeight& stored_;
  const Workspace<T>& w_;
};

}  // namespace backpass
