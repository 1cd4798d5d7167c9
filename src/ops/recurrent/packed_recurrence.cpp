#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {
namespace {

// Fewer weights stay in a second-level cache anyway.
constexpr std::int64_t kFewBytes = 256 * 1024;
// Halves begin at a multiple of this: no vectors are left half full.
constexpr std::int64_t kHalfStep = 48;

/// `pack(first column, columns)` for each part of what a step multiplies by; gates are columns side by side.
template <class T, class Pack>
PackedRecurrence<T> packed_parts(const CellSpec& spec, std::int64_t hidden, const Pack& pack) {
  const auto gates = [&](std::int64_t first, std::int64_t count) {
    const std::int64_t columns = count * hidden;
    const std::int64_t half = (columns / 2 + kHalfStep - 1) / kHalfStep * kHalfStep;
    const bool is_cut = columns * hidden * static_cast<std::int64_t>(sizeof(T)) > kFewBytes && half < columns;
    if (!is_cut) return PackedGates<T>{{pack(first * hidden, columns), nullptr}};
    return PackedGates<T>{{pack(first * hidden, half), pack(first * hidden + half, columns - half)}};
  };
  if (spec.kind == CellKind::gru && !spec.linear_before_reset) return {gates(0, 2), gates(2, 1)};
  return {gates(0, gate_count(spec.kind)), {}};
}

}  // namespace

template <class T>
PackedRecurrence<T> pack_recurrence(const CellSpec& spec, std::int64_t hidden, const T* r) {
  return packed_parts<T>(spec, hidden, [&](std::int64_t first, std::int64_t columns) {
    return std::make_shared<const PackedMatrix<T>>(true, hidden, columns, r + first * hidden, hidden);
  });
}

template <class T>
PackedRecurrence<T> shared_recurrence(const CellSpec& spec, std::int64_t hidden, const Tensor& r, std::int64_t offset) {
  return packed_parts<T>(spec, hidden, [&](std::int64_t first, std::int64_t columns) {
    return shared_packed<T>(r, true, hidden, columns, offset + first * hidden);
  });
}

template PackedRecurrence<float> pack_recurrence(const CellSpec&, std::int64_t, const float*);
template PackedRecurrence<double> pack_recurrence(const CellSpec&, std::int64_t, const double*);
template PackedRecurrence<float> shared_recurrence(const CellSpec&, std::int64_t, const Tensor&, std::int64_t);
template PackedRecurrence<double> shared_recurrence(const CellSpec&, std::int64_t, const Tensor&, std::int64_t);

}  // namespace backpass
