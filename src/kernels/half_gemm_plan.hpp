// The two ways a HalfGemm runs, behind one interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/half_gemm.hpp"
#include "support/convert.hpp"

namespace backpass {

inline constexpr std::int64_t kHalfBytes = 2;

inline const std::byte* half_at(const void* data, std::int64_t elements) {
  return static_cast<const std::byte*>(data) + elements * kHalfBytes;
}

/// Finished sums become elements of C: the factor, the addend, the function, one rounding.
class HalfEnd {
 public:
  explicit HalfEnd(const HalfProduct& product);

  /// Sums are what C holds in the end: they can be added up right there.
  bool is_nothing() const { return is_nothing_; }

  /// Sums of rows and columns from (i0, j0) on, `ld` apart; they are overwritten.
  void store(float* sums, std::int64_t ld, std::int64_t i0, std::int64_t rows, std::int64_t j0, std::int64_t cols,
             const void* addend, void* c) const;

 private:
  const float* addend_of(std::int64_t i, std::int64_t j0, std::int64_t cols, const void* addend) const;

  float alpha_;
  HalfAddend addend_;
  TileCall activate_;
  bool adds_, is_nothing_;
  std::int64_t ldc_, bytes_;
  ConvertLoop widen_, narrow_;
};

class HalfGemm::Plan {
 public:
  virtual ~Plan() = default;
  virtual void run(const void* a, const void* b, const void* addend, void* c) const = 0;
};

/// Null where oneDNN has no fast product for it.
std::shared_ptr<const HalfGemm::Plan> native_half_gemm(const HalfProduct& product);

/// `constant_b` may be null.
std::shared_ptr<const HalfGemm::Plan> widening_half_gemm(const HalfProduct& product, const void* constant_b);

/// Calls f(offset of A, offset of B, offset of C) for product number `index` of the batch; offsets in elements.
template <class F>
void at_product(const GemmBatch& g, std::int64_t index, F&& f) {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t c = 0;
  for (std::size_t axis = g.batch.size(); axis-- > 0;) {
    const std::int64_t at = index % g.batch[axis];
    index /= g.batch[axis];
    a += at * g.stride_a[axis];
    b += at * g.stride_b[axis];
    c += at * g.stride_c[axis];
  }
  f(a, b, c);
}

}  // namespace backpass
