// Products of 16-bit floats on processors that cannot multiply them: panels of B and blocks of A are widened to float32
// on the way into the innermost loop.
#include <algorithm>

#include "kernels/gemm_simd.hpp"
#include "kernels/half_gemm_plan.hpp"
#include "kernels/thread_buffer.hpp"
#include "kernels/transpose_tile.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

enum Slot : int { kPanels = 730, kWideB, kWideA, kTurnedA, kSums, kAllSums };

// A stretch of k for which a panel of B stays in the first-level cache; a piece of C, which stays in the second.
constexpr std::int64_t kDepth = 320;
constexpr std::int64_t kRows = 96;
constexpr std::int64_t kColumns = 512;
// Elements of B that are packed at a time when it is not constant.
constexpr std::int64_t kPackedElements = std::int64_t{1} << 20;
constexpr std::int64_t kPanelsAtOnce = 4;
// A longer k leaves so few columns for that many elements that A would be widened over and over again: then k is cut,
// too, as long as all sums of the columns have room for as many elements.
constexpr std::int64_t kLongSum = 4096;

struct Range {
  std::int64_t begin, end;
};

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

class WideningGemm final : public HalfGemm::Plan {
 public:
  WideningGemm(const HalfProduct& product, const void* constant_b)
      : g_(product.batch),
        result_bytes_(bit_width(product.result) / 8),
        end_(product),
        widen_(convert_loop(product.dtype, DType::float32)),
        kernels_(gemm_kernels<float>()) {
    const std::int64_t panel = kernels_.panel;
    step_ = std::max(panel, kPackedElements / std::max<std::int64_t>(g_.k, 1) / panel * panel);
    if (constant_b == nullptr || g_.k == 0) return;
    constant_ = Tensor(DType::float32, {g_.k * round_up(g_.n, kernels_.panel)});
    for (std::int64_t j = 0; j < g_.n; j += step_) {
      pack(constant_b, {0, g_.k}, j, std::min(step_, g_.n - j), constant_.as<float>() + j * g_.k);
    }
    has_constant_ = true;
  }

  void run(const void* a, const void* b, const void* addend, void* c) const override {
    const std::int64_t count = element_count(g_.batch);
    if (count == 0 || g_.m == 0 || g_.n == 0) return;
    auto one = [&](std::int64_t at_a, std::int64_t at_b, std::int64_t at_c) {
      multiply(half_at(a, at_a), half_at(b, at_b), addend, static_cast<std::byte*>(c) + at_c * result_bytes_);
    };
    constexpr std::int64_t kLarge = std::int64_t{1} << 23;
    if (count == 1 || (count < 16 && g_.m * g_.n * g_.k >= kLarge)) {
      for (std::int64_t i = 0; i < count; ++i) at_product(g_, i, one);
      return;
    }
    parallel_for(count, grain_for(g_.m * g_.n * g_.k, 1 << 18), [&](std::int64_t begin, std::int64_t end) {
      ThreadScope alone(1);
      for (std::int64_t i = begin; i < end; ++i) at_product(g_, i, one);
    });
  }

 private:
  void multiply(const void* a, const void* b, const void* addend, void* c) const {
    if (g_.k > kLongSum && !has_constant_ && g_.m * std::min(g_.n, kColumns) <= kPackedElements) {
      return multiply_long(a, b, addend, c);
    }
    for (std::int64_t j = 0; j < g_.n; j += step_) {
      const std::int64_t cols = std::min(step_, g_.n - j);
      const float* panels = has_constant_ ? constant_.as<float>() + j * g_.k : nullptr;
      if (panels == nullptr) {
        float* packed = thread_buffer<float, kPanels>(g_.k * round_up(cols, kernels_.panel));
        pack(b, {0, g_.k}, j, cols, packed);
        panels = packed;
      }
      multiply_panels(a, panels, j, cols, addend, c);
    }
  }

  /// Some of k at a time, with float32 sums of all rows.
  void multiply_long(const void* a, const void* b, const void* addend, void* c) const {
    for (std::int64_t j = 0; j < g_.n; j += kColumns) {
      const std::int64_t cols = std::min(kColumns, g_.n - j);
      const std::int64_t padded = round_up(cols, kernels_.panel);
      const std::int64_t length = std::max(kDepth, kPackedElements / padded / kDepth * kDepth);
      float* packed = thread_buffer<float, kPanels>(length * padded);
      float* sums = thread_buffer<float, kAllSums>(g_.m * cols);
      for (std::int64_t p = 0; p < g_.k; p += length) {
        const Range part{p, std::min(g_.k, p + length)};
        pack(b, part, j, cols, packed);
        for_each_rows([&](std::int64_t i, std::int64_t rows) {
          sum_piece(a, packed, padded, part, i, rows, 0, cols, sums + i * cols, cols);
          if (part.end == g_.k) end_.store(sums + i * cols, cols, i, rows, j, cols, addend, c);
        });
      }
    }
  }

  template <class F>
  void for_each_rows(const F& f) const {
    parallel_for((g_.m + kRows - 1) / kRows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * kRows; i < std::min(g_.m, end * kRows); i += kRows) {
        f(i, std::min(kRows, g_.m - i));
      }
    });
  }

  /// Columns from j0 on as panels: for each stretch of k, all of them one after the other.
  void pack(const void* b, Range k, std::int64_t j0, std::int64_t cols, float* out) const {
    const std::int64_t panel = kernels_.panel;
    const std::int64_t padded = round_up(cols, panel);
    parallel_for((cols + panel - 1) / panel, std::max(kPanelsAtOnce, grain_for((k.end - k.begin) * panel)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t q = begin; q < end; q += kPanelsAtOnce) {
                     const std::int64_t j = q * panel;
                     const std::int64_t last = std::min({cols, (q + kPanelsAtOnce) * panel, end * panel});
                     for (std::int64_t p = k.begin; p < k.end; p += kDepth) {
                       const std::int64_t depth = std::min(kDepth, k.end - p);
                       pack_block(b, p, depth, j0 + j, last - j, out + (p - k.begin) * padded + j * depth);
                     }
                   }
                 });
  }

  void pack_block(const void* b, std::int64_t p, std::int64_t depth, std::int64_t j, std::int64_t cols,
                  float* out) const {
    const std::int64_t lines = g_.trans_b ? cols : depth;
    const std::int64_t length = g_.trans_b ? depth : cols;
    const std::byte* from = half_at(b, g_.trans_b ? j * g_.ldb + p : p * g_.ldb + j);
    float* wide = thread_buffer<float, kWideB>(lines * length);
    for (std::int64_t i = 0; i < lines; ++i) widen_(from + i * g_.ldb * kHalfBytes, wide + i * length, length);
    kernels_.pack(g_.trans_b, depth, cols, wide, length, out, depth * kernels_.panel);
  }

  void multiply_panels(const void* a, const float* panels, std::int64_t j0, std::int64_t cols, const void* addend,
                       void* c) const {
    const std::int64_t row_pieces = (g_.m + kRows - 1) / kRows;
    const std::int64_t col_pieces = (cols + kColumns - 1) / kColumns;
    const std::int64_t rows = round_up((g_.m + row_pieces - 1) / row_pieces, kernels_.rows);
    const std::int64_t width = round_up((cols + col_pieces - 1) / col_pieces, kernels_.panel);
    const std::int64_t padded = round_up(cols, kernels_.panel);
    // Pieces of the same rows follow each other: a chunk widens its part of A once for all of them where it can.
    parallel_for(row_pieces * col_pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t i = piece / col_pieces * rows;
        const std::int64_t j = piece % col_pieces * width;
        if (i >= g_.m || j >= cols) continue;
        const std::int64_t height = std::min(rows, g_.m - i);
        const std::int64_t across = std::min(width, cols - j);
        if (end_.is_nothing()) {
          float* there = static_cast<float*>(c) + i * g_.ldc + j0 + j;
          sum_piece(a, panels, padded, {0, g_.k}, i, height, j, across, there, g_.ldc);
          continue;
        }
        float* sums = thread_buffer<float, kSums>(height * across);
        sum_piece(a, panels, padded, {0, g_.k}, i, height, j, across, sums, across);
        end_.store(sums, across, i, height, j0 + j, across, addend, c);
      }
    });
  }

  /// Adds the products of a part of k, or begins with them.
  void sum_piece(const void* a, const float* panels, std::int64_t padded, Range k, std::int64_t i, std::int64_t rows,
                 std::int64_t j, std::int64_t cols, float* sums, std::int64_t ld) const {
    std::int64_t p = k.begin;
    do {
      const std::int64_t depth = std::min(kDepth, k.end - p);
      const float* block = widened_block(a, i, rows, p, depth);
      BlockEnd<float> end;
      end.beta = p == 0 ? 0 : 1;
      kernels_.multiply(rows, cols, depth, block, depth, panels + (p - k.begin) * padded + j * depth,
                        depth * kernels_.panel, sums, ld, end);
      p += depth;
    } while (p < k.end);
  }

  /// Rows of op(A), next to each other.
  const float* widened_block(const void* a, std::int64_t i, std::int64_t rows, std::int64_t p,
                             std::int64_t depth) const {
    float* wide = thread_buffer<float, kWideA>(rows * depth);
    if (!g_.trans_a) {
      const std::byte* from = half_at(a, i * g_.lda + p);
      for (std::int64_t r = 0; r < rows; ++r) widen_(from + r * g_.lda * kHalfBytes, wide + r * depth, depth);
      return wide;
    }
    const std::byte* from = half_at(a, p * g_.lda + i);
    for (std::int64_t q = 0; q < depth; ++q) widen_(from + q * g_.lda * kHalfBytes, wide + q * rows, rows);
    float* turned = thread_buffer<float, kTurnedA>(rows * depth);
    kernels::transpose(wide, rows, turned, depth, rows, depth);
    return turned;
  }

  GemmBatch g_;
  std::int64_t result_bytes_;
  HalfEnd end_;
  ConvertLoop widen_;
  const GemmKernels<float>& kernels_;
  std::int64_t step_;  ///< columns of B that are packed at a time
  Tensor constant_;    ///< all panels of a B that does not change
  bool has_constant_ = false;
};

}  // namespace

std::shared_ptr<const HalfGemm::Plan> widening_half_gemm(const HalfProduct& product, const void* constant_b) {
  return std::make_shared<WideningGemm>(product, constant_b);
}

}  // namespace backpass
