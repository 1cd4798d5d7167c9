// Where the windows of a pooling lie, axis by axis.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backpass/tensor.hpp"
#include "kernels/conv.hpp"

namespace backpass {

/// Sizes of a pooling; spatial vectors have one entry per spatial axis.
struct PoolGeometry {
  std::int64_t planes = 1;  ///< batch * channels
  Dims in;
  Dims out;
  Dims kernel;
  Dims stride;
  Dims dilation;
  Dims pad_begin;
  Dims pad_end;
};

/// One window along one axis: input positions first, first + dilation, ... (count of them, all inside).
struct PoolSpan {
  std::int64_t first;
  std::int64_t count;
  std::int64_t padded_count;  ///< positions that are inside or in the padding
};

/// Spans of all windows; the same for every plane.
class PoolWindows {
 public:
  explicit PoolWindows(const PoolGeometry& g) : geometry(g) {
    ensure(g.in.size() <= kMaxSpatialAxes, "pooling over ", g.in.size(), " axes");
    for (std::size_t axis = 0; axis < g.in.size(); ++axis) {
      begin_[axis] = spans_.size();
      for (std::int64_t o = 0; o < g.out[axis]; ++o) spans_.push_back(span_of(axis, o));
    }
  }

  const PoolSpan& at(std::size_t axis, std::int64_t out) const {
    return spans_[begin_[axis] + static_cast<std::size_t>(out)];
  }

  PoolGeometry geometry;

 private:
  PoolSpan span_of(std::size_t axis, std::int64_t out) const {
    const PoolGeometry& g = geometry;
    std::int64_t start = out * g.stride[axis] - g.pad_begin[axis];
    std::int64_t d = g.dilation[axis];
    auto before = [&](std::int64_t end) {  // positions of the window below `end`
      return start >= end ? 0 : std::min(g.kernel[axis], (end - start + d - 1) / d);
    };
    std::int64_t skipped = before(0);
    std::int64_t count = std::max<std::int64_t>(0, before(g.in[axis]) - skipped);
    return {start + skipped * d, count, before(g.in[axis] + g.pad_end[axis])};
  }

  std::vector<PoolSpan> spans_;
  std::array<std::size_t, kMaxSpatialAxes> begin_{};
};

}  // namespace backpass
