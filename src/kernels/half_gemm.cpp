#include "kernels/half_gemm.hpp"

#include "kernels/half_gemm_plan.hpp"

namespace backpass {
namespace {

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

}  // namespace backpass
