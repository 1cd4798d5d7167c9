// Padding and cropping of a tensor: every output row is a stretch of an input row with made-up elements on either side.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backpass/dtype.hpp"

namespace backpass::kernels {

enum class PadMode : std::uint8_t { constant, reflect, edge, wrap };

class PadCopy {
 public:
  /// begins[i] elements are added before axis i (removed when negative); what is added or removed after it follows from
  /// the extents. Modes other than constant need at least one element along every axis that grows.
  PadCopy(DType dtype, std::span<const std::int64_t> in, std::span<const std::int64_t> out,
          std::span<const std::int64_t> begins, PadMode mode);

  /// `fill` points at the element used by mode constant; null means zero (an empty string).
  void operator()(const void* in, const void* fill, void* out) const;

 private:
  struct Axis {
    std::vector<std::int64_t> source;  ///< input index of every output index; -1: the fill value
    std::int64_t stride = 1;
  };

  template <class T>
  void run(const T* in, const T& fill, T* out) const;
  template <class T>
  void run_row(const T* in, const T& fill, T* out) const;

  DType dtype_;
  std::vector<Axis> outer_;
  Axis inner_;               ///< the last axis that changes
  std::int64_t block_ = 1;   ///< elements of everything after it
  std::int64_t copied_ = 0;  ///< inner indices [lead_, lead_ + copied_) are consecutive in the input
  std::int64_t lead_ = 0;
  std::int64_t rows_ = 1;
};

}  // namespace backpass::kernels
