// What happens to the sums of a product of 16-bit floats once they are complete.
#include <algorithm>

#include "kernels/half_gemm_plan.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half_gemm_end.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// y[i] = a * y[i] + b * x[i]; `x` may be null.
void combine(float* HWY_RESTRICT y, float a, const float* HWY_RESTRICT x, float b, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto va = hn::Set(d, a);
  const auto vb = hn::Set(d, b);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto v = hn::Mul(va, hn::LoadU(d, y + i));
    if (x != nullptr) v = hn::Add(v, hn::Mul(vb, hn::LoadU(d, x + i)));
    hn::StoreU(v, d, y + i);
  }
  for (; i < n; ++i) {
    const float v = a * y[i];
    y[i] = x != nullptr ? v + b * x[i] : v;
  }
}

}  // namespace
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
HWY_EXPORT(combine);

namespace {
enum Slot : int { kAddend = 720 };
}  // namespace

HalfEnd::HalfEnd(const HalfProduct& product)
    : alpha_(static_cast<float>(product.alpha)),
      addend_(product.addend),
      activate_(product.activation.bind(DType::float32)),
      adds_(product.adds),
      is_nothing_(product.result == DType::float32 && product.alpha == 1 && !product.addend.is_present &&
                  !product.activation && !product.adds),
      ldc_(product.batch.ldc),
      bytes_(bit_width(product.result) / 8),
      widen_(convert_loop(product.dtype, DType::float32)),
      narrow_(convert_loop(DType::float32, product.result)) {}

/// What is added to row i, from column j0 on.
const float* HalfEnd::addend_of(std::int64_t i, std::int64_t j0, std::int64_t cols, const void* addend) const {
  float* wide = thread_buffer<float, kAddend>(cols);
  const std::byte* from = half_at(addend, i * addend_.row_stride + j0 * addend_.col_stride);
  if (addend_.col_stride != 0) {
    widen_(from, wide, cols);
  } else {
    widen_(from, wide, 1);
    std::fill_n(wide, cols, *wide);
  }
  return wide;
}

void HalfEnd::store(float* sums, std::int64_t ld, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                    std::int64_t cols, const void* addend, void* c) const {
  const auto combine_rows = HWY_DYNAMIC_DISPATCH(combine);
  const float* added = nullptr;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = sums + i * ld;
    const bool is_another = addend_.is_present && (i == 0 || addend_.row_stride != 0);
    if (is_another) added = addend_of(i0 + i, j0, cols, addend);
    if (alpha_ != 1 || added != nullptr) combine_rows(row, alpha_, added, static_cast<float>(addend_.factor), cols);
    if (activate_) activate_(row, cols);
    std::byte* to = static_cast<std::byte*>(c) + ((i0 + i) * ldc_ + j0) * bytes_;
    if (adds_) {
      combine_rows(reinterpret_cast<float*>(to), 1, row, 1, cols);
    } else {
      narrow_(row, to, cols);
    }
  }
}

}  // namespace backpass
#endif
