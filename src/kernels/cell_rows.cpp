#include "kernels/cell_rows.hpp"

#include <algorithm>
#include <cstddef>

#include "support/simd.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cell_rows.cpp"
#include "hwy/foreach_target.h"
// clang-format off
#include "kernels/tile_math.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Divisions take as long as the rest of a cell: functions are quotients here, so that a product of two takes one.
struct Quotient {
  V above, below;
};

HWY_INLINE V value_of(const Quotient& q) { return hn::Div(q.above, q.below); }

/// e^x = scale + scale * rest, of a scale that is a power of two. |x| is at most 87, or x is NaN.
struct Exponential {
  V scale, rest;
};

HWY_INLINE V limited(V x, float limit) {
  const D d;
  // The second operand of Min and Max is what x86 returns for NaN.
  return hn::Min(hn::Set(d, limit), hn::Max(hn::Set(d, -limit), x));
}

HWY_INLINE Exponential exponential(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 leaves the nearest integer to x / ln 2 in the low bits; 127 more make it an exponent.
  const V magic = hn::Set(d, 12582912.0F + 127.0F);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), magic);
  const V k = hn::Sub(shifted, magic);
#if HWY_NATIVE_FMA
  const V r = hn::NegMulAdd(k, hn::Set(d, 0.693147181F), x);
#else
  const V r = hn::NegMulAdd(k, hn::Set(d, 1.42860677e-6F), hn::NegMulAdd(k, hn::Set(d, 0.693145752F), x));
#endif
  const V q = math::polynomial(d, r, 0.49999994, 0.166665211, 0.0416683890, 0.00836874545, 0.00138145394);
  return {hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))), hn::MulAdd(hn::Mul(r, r), q, r)};
}

/// 1 / (1 + e^-x)
HWY_INLINE Quotient sigmoid(V x) {
  const V one = hn::Set(D(), 1.0F);
  const Exponential e = exponential(limited(hn::Neg(x), 87.0F));
  return {one, hn::MulAdd(e.scale, e.rest, hn::Add(e.scale, one))};
}

/// (e^2x - 1) / (e^2x + 1), which is 1 beyond 9. Nothing is lost near 0, where the scale is 1.
HWY_INLINE Quotient tanh(V x) {
  const D d;
  const Exponential e = exponential(limited(hn::Add(x, x), 20.0F));
  const V above = hn::MulAdd(e.scale, e.rest, hn::Sub(e.scale, hn::Set(d, 1.0F)));
  return {above, hn::Add(above, hn::Set(d, 2.0F))};
}

/// Whole vectors, and the part of one at the end of a row.
struct Whole {
  HWY_INLINE V load(const float* p) const { return hn::LoadU(D(), p); }
  HWY_INLINE void store(V v, float* p) const { hn::StoreU(v, D(), p); }
};
struct Part {
  std::size_t count;
  HWY_INLINE V load(const float* p) const {
    HWY_ALIGN float buffer[hn::MaxLanes(D())] = {};
    std::copy_n(p, count, buffer);
    return hn::Load(D(), buffer);
  }
  HWY_INLINE void store(V v, float* p) const {
    HWY_ALIGN float buffer[hn::MaxLanes(D())];
    hn::Store(v, D(), buffer);
    std::copy_n(buffer, count, p);
  }
};

/// Pointers into one row.
struct LstmRow {
  const float* gates;
  float* cell;
  float* hidden;
  std::size_t size;
  CellCopies copies;
};

template <class Lanes>
HWY_INLINE void lstm_lanes(const Lanes lanes, const LstmRow& row, std::size_t k) {
  const Quotient i = sigmoid(lanes.load(row.gates + k));
  const Quotient o = sigmoid(lanes.load(row.gates + row.size + k));
  const V f = value_of(sigmoid(lanes.load(row.gates + 2 * row.size + k)));
  const Quotient g = tanh(lanes.load(row.gates + 3 * row.size + k));
  const V c = hn::MulAdd(f, lanes.load(row.cell + k), hn::Div(g.above, hn::Mul(i.below, g.below)));
  const Quotient tanh_c = tanh(c);
  const V h = hn::Div(tanh_c.above, hn::Mul(o.below, tanh_c.below));
  lanes.store(c, row.cell + k);
  lanes.store(h, row.hidden + k);
  if (row.copies.cell != nullptr) lanes.store(c, row.copies.cell + k);
  if (row.copies.hidden != nullptr) lanes.store(h, row.copies.hidden + k);
  if (row.copies.gates == nullptr) return;
  lanes.store(value_of(i), row.copies.gates + k);
  lanes.store(value_of(o), row.copies.gates + row.size + k);
  lanes.store(f, row.copies.gates + 2 * row.size + k);
  lanes.store(value_of(g), row.copies.gates + 3 * row.size + k);
}

void lstm_row(const float* gates, float* cell, float* hidden, std::size_t size, const CellCopies& copies) {
  const LstmRow row{gates, cell, hidden, size, copies};
  std::size_t k = 0;
  for (; k + hn::Lanes(D()) <= size; k += hn::Lanes(D())) lstm_lanes(Whole(), row, k);
  if (k < size) lstm_lanes(Part{size - k}, row, k);
}

struct GruRow {
  const float* gates;
  const float* recurrent;
  float* hidden;
  std::size_t size;
  CellCopies copies;
};

template <class Lanes>
HWY_INLINE void gru_lanes(const Lanes lanes, const GruRow& row, std::size_t k) {
  const float* input = row.gates + k;
  const float* recurrent = row.recurrent + k;
  const V z = value_of(sigmoid(hn::Add(lanes.load(input), lanes.load(recurrent))));
  const V r = value_of(sigmoid(hn::Add(lanes.load(input + row.size), lanes.load(recurrent + row.size))));
  const V g = value_of(tanh(hn::MulAdd(r, lanes.load(recurrent + 2 * row.size), lanes.load(input + 2 * row.size))));
  const V h = hn::MulAdd(z, hn::Sub(lanes.load(row.hidden + k), g), g);
  lanes.store(h, row.hidden + k);
  if (row.copies.hidden != nullptr) lanes.store(h, row.copies.hidden + k);
  if (row.copies.gates == nullptr) return;
  lanes.store(z, row.copies.gates + k);
  lanes.store(r, row.copies.gates + row.size + k);
  lanes.store(g, row.copies.gates + 2 * row.size + k);
}

void gru_row(const float* gates, const float* recurrent, float* hidden, std::size_t size, const CellCopies& copies) {
  const GruRow row{gates, recurrent, hidden, size, copies};
  std::size_t k = 0;
  for (; k + hn::Lanes(D()) <= size; k += hn::Lanes(D())) gru_lanes(Whole(), row, k);
  if (k < size) gru_lanes(Part{size - k}, row, k);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(lstm_row);
HWY_EXPORT(gru_row);

}  // namespace

void lstm_row(const float* gates, float* cell, float* hidden, std::int64_t hidden_size, const CellCopies& copies) {
  HWY_DYNAMIC_DISPATCH(lstm_row)(gates, cell, hidden, static_cast<std::size_t>(hidden_size), copies);
}

void gru_row(const float* gates, const float* recurrent, float* hidden, std::int64_t hidden_size,
             const CellCopies& copies) {
  HWY_DYNAMIC_DISPATCH(gru_row)(gates, recurrent, hidden, static_cast<std::size_t>(hidden_size), copies);
}

}  // namespace backpass
#endif  // HWY_ONCE
