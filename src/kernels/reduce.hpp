// Reductions over any set of axes of a row-major tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backpass/dtype.hpp"
#include "backpass/tensor.hpp"
#include "kernels/fold.hpp"

namespace backpass {

/// What is done to each folded value before it is stored.
enum class Finish : std::uint8_t { none, mean, root, log };

/// A reduction with its loops laid out: neighbouring axes of the same kind are merged, axes of extent 1 are dropped.
/// The innermost axis is either folded (runs of `rows` elements) or kept (`inner` columns, folded over `rows` rows).
struct Reduction {
  struct Axis {
    std::int64_t extent;
    std::int64_t stride;
  };
  Fold fold = Fold::sum;
  Finish finish = Finish::none;
  std::vector<Axis> kept;    ///< without the innermost one
  std::vector<Axis> folded;  ///< without the one that `rows` stands for
  std::int64_t inner = 1;
  std::int64_t rows = 1;
  std::int64_t row_stride = 1;
  bool runs = true;              ///< the innermost axis is folded
  std::int64_t blocks = 1;       ///< product of kept
  std::int64_t outputs = 1;      ///< blocks * inner
  std::int64_t count = 1;        ///< elements behind one output
  std::int64_t groups = 1;       ///< parts in which one output is folded, so that few outputs still keep threads busy
  std::int64_t group_units = 1;  ///< (folded index, chunk of rows) pairs per group
  std::int64_t chunk_rows = 1;
  std::int64_t chunks = 1;  ///< chunks of rows

  /// Bytes of scratch memory that `reduce` needs.
  std::size_t scratch_bytes() const { return groups == 1 ? 0 : static_cast<std::size_t>(groups * outputs) * 8; }
};

/// `reduced[i]` says whether axis i is folded.
Reduction plan_reduction(std::span<const std::int64_t> dims, const std::vector<bool>& reduced, Fold fold,
                         Finish finish);

/// Integers wrap around; bool takes maximum (or) and minimum (and). `shift` (may be null) has one value per output: see
/// fold_run. All floats, integers and bool; 16-bit floats are widened some at a time, and have no shift.
void reduce(const Reduction& plan, DType dtype, const void* x, const void* shift, void* y, std::byte* scratch);

}  // namespace backpass
