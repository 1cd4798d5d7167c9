#include "kernels/half_gemm.hpp"

#include <algorithm>

#include "kernels/half_gemm_plan.hpp"
#include "kernels/thread_buffer.hpp"

namespace backpass {
namespace {

enum Slot : int { kAddend = 720 };

std::shared_ptr<const HalfGemm::Plan> plan_for(const HalfProduct& product, const void* constant_b) {
  if (auto native = native_half_gemm(product)) return native;
  return widening_half_gemm(product, constant_b);
}

}  // namespace

HalfGemm::HalfGemm(const HalfProduct& product) : plan_(plan_for(product, nullptr)) {}

HalfGemm::HalfGemm(const HalfProduct& product, const void* constant_b) : plan_(plan_for(product, constant_b)) {}

void HalfGemm::run(const void* a, const void* b, const void* addend, void* c) const { plan_->run(a, b, addend, c); }

HalfGemm HalfGemmCache::planned(const GemmBatch& s, bool adds) {
  constexpr std::size_t kMost = 256;  // sizes that data decide could go on for ever
  const Key key{s.trans_a ? 1 : 0, s.trans_b ? 1 : 0, s.m, s.n, s.k, s.lda, s.ldb, s.ldc, adds ? 1 : 0};
  std::lock_guard lock(mutex_);
  if (auto found = plans_.find(key); found != plans_.end()) return found->second;
  if (plans_.size() >= kMost) plans_.clear();
  HalfProduct product;
  product.batch = s;
  product.result = DType::float32;
  product.adds = adds;
  return plans_.emplace(key, HalfGemm(product)).first->second;
}

void HalfGemmCache::run(const GemmBatch& sizes, bool adds, const void* a, const void* b, float* c) {
  planned(sizes, adds).run(a, b, nullptr, c);
}

HalfEnd::HalfEnd(const HalfProduct& product)
    : alpha_(static_cast<float>(product.alpha)),
      addend_(product.addend),
      activate_(product.activation.bind(DType::float32)),
      adds_(product.adds),
      ldc_(product.batch.ldc),
      bytes_(bit_width(product.result) / 8),
      widen_(convert_loop(product.dtype, DType::float32)),
      narrow_(convert_loop(DType::float32, product.result)) {}

void HalfEnd::add(float* row, std::int64_t i, std::int64_t j0, std::int64_t cols, const void* addend) const {
  const auto factor = static_cast<float>(addend_.factor);
  const std::byte* from = half_at(addend, i * addend_.row_stride + j0 * addend_.col_stride);
  if (addend_.col_stride == 0) {
    float value;
    widen_(from, &value, 1);
    for (std::int64_t j = 0; j < cols; ++j) row[j] += factor * value;
    return;
  }
  float* wide = thread_buffer<float, kAddend>(cols);
  widen_(from, wide, cols);
  for (std::int64_t j = 0; j < cols; ++j) row[j] += factor * wide[j];
}

void HalfEnd::store(float* sums, std::int64_t ld, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                    std::int64_t cols, const void* addend, void* c) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = sums + i * ld;
    if (alpha_ != 1) {
      for (std::int64_t j = 0; j < cols; ++j) row[j] *= alpha_;
    }
    if (addend_.is_present) add(row, i0 + i, j0, cols, addend);
    if (activate_) activate_(row, cols);
    std::byte* to = static_cast<std::byte*>(c) + ((i0 + i) * ldc_ + j0) * bytes_;
    if (adds_) {
      auto* held = reinterpret_cast<float*>(to);
      for (std::int64_t j = 0; j < cols; ++j) held[j] += row[j];
    } else {
      narrow_(row, to, cols);
    }
  }
}

}  // namespace backpass
