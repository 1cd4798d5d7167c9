// Matrix products of float16 and bfloat16 operands, with sums in float32. Bits do not depend on the number of threads.
//
// Where the processor multiplies bfloat16 (AVX512-BF16, AMX), oneDNN does, one thread for each piece of C. Elsewhere
// operands become float32 while they are copied into the order the innermost loop reads: no whole copy of an operand is
// ever made, and the result is rounded once, when its sums are complete.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/gemm.hpp"

namespace backpass {

/// What is added to the product: element (i, j) is factor * data[i * row_stride + j * col_stride].
struct HalfAddend {
  bool is_present = false;
  double factor = 1;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

/// C = f(alpha * op(A) op(B) + addend) for all products of a batch.
struct HalfProduct {
  GemmBatch batch;
  DType dtype = DType::bfloat16;   ///< of A, B and the addend
  DType result = DType::bfloat16;  ///< of C: `dtype` or float32
  double alpha = 1;
  HalfAddend addend;
  UnaryTile activation;
  bool adds = false;  ///< to what C, of float32, holds already
};

/// The processor multiplies bfloat16, and oneDNN makes use of it.
bool multiplies_bfloat16();

/// A HalfProduct with all decided that sizes decide.
class HalfGemm {
 public:
  explicit HalfGemm(const HalfProduct& product);
  /// With a right operand that will not change: a single matrix, which begins `b`.
  HalfGemm(const HalfProduct& product, const void* constant_b);

  void run(const void* a, const void* b, const void* addend, void* c) const;

  class Plan;

 private:
  std::shared_ptr<const Plan> plan_;
};

/// Products of bfloat16 matrices into float32 whose sizes are known late: planned when they are met first, and kept.
class HalfGemmCache {
 public:
  /// C = op(A) op(B), or what is in C plus that.
  void run(const GemmBatch& sizes, bool adds, const void* a, const void* b, float* c);

 private:
  HalfGemm planned(const GemmBatch& sizes, bool adds);

  using Key = std::array<std::int64_t, 9>;
  std::mutex mutex_;
  std::map<Key, HalfGemm> plans_;
};

}  // namespace backpass
