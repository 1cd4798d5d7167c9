// Products of bfloat16 matrices by oneDNN, where the processor multiplies them.
//
// oneDNN promises the same bits only for the same number of threads. So C is cut into pieces by sizes alone, and every
// piece is the work of one thread.
#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <string_view>

#include "kernels/half_gemm_plan.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

enum Slot : int { kSums = 740, kScratch };

// Sums of a piece stay in the second-level cache; B, which oneDNN packs for each piece, serves enough rows.
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kColumns = 512;

using Desc = dnnl::memory::desc;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// A matrix of `ld` elements from line to line.
Desc matrix(std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t ld, dnnl::memory::data_type type) {
  return {{rows, cols}, type, transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

/// The product of one size of pieces.
struct PieceProduct {
  dnnl::primitive primitive;
  Desc a, b, c, scratch;

  PieceProduct() = default;
  PieceProduct(const GemmBatch& g, std::int64_t rows, std::int64_t cols, std::int64_t ldc)
      : a(matrix(rows, g.k, g.trans_a, g.lda, dnnl::memory::data_type::bf16)),
        b(matrix(g.k, cols, g.trans_b, g.ldb, dnnl::memory::data_type::bf16)),
        c(matrix(rows, cols, false, ldc, dnnl::memory::data_type::f32)) {
    ThreadScope alone(1);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is not for several threads
    dnnl::matmul::primitive_desc how(engine(), a, b, c, attributes);
    scratch = how.scratchpad_desc();
    is_fast = std::string_view(how.impl_info_str()).find("ref") == std::string_view::npos;
    if (is_fast) primitive = dnnl::matmul(how);
  }

  bool is_fast = false;
};

/// Operands of a PieceProduct, which are costly to make and cheap to set.
class PieceRun {
 public:
  explicit PieceRun(const PieceProduct& product)
      : primitive_(product.primitive),
        a_(product.a, engine(), nullptr),
        b_(product.b, engine(), nullptr),
        c_(product.c, engine(), nullptr),
        scratch_(product.scratch, engine(), nullptr),
        scratch_bytes_(static_cast<std::int64_t>(product.scratch.get_size())) {}

  void run(const void* a, const void* b, float* c) {
    thread_local dnnl::stream stream(engine());
    a_.set_data_handle(const_cast<void*>(a));  // NOLINT: oneDNN takes inputs as void*
    b_.set_data_handle(const_cast<void*>(b));  // NOLINT
    c_.set_data_handle(c);
    scratch_.set_data_handle(thread_buffer<std::byte, kScratch>(std::max<std::int64_t>(1, scratch_bytes_)));
    const std::array<dnnl_exec_arg_t, 4> arguments{{{DNNL_ARG_SRC, a_.get()},
                                                    {DNNL_ARG_WEIGHTS, b_.get()},
                                                    {DNNL_ARG_DST, c_.get()},
                                                    {DNNL_ARG_SCRATCHPAD, scratch_.get()}}};
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data());
    ensure(status == dnnl_success, "oneDNN could not run a product: status ", static_cast<int>(status));
  }

 private:
  const dnnl::primitive& primitive_;
  dnnl::memory a_, b_, c_, scratch_;
  std::int64_t scratch_bytes_;
};

/// An extent in parts of about equal size, the last one smaller.
struct Parts {
  std::int64_t count, size, last;

  Parts(std::int64_t extent, std::int64_t most) : count((extent + most - 1) / most) {
    constexpr std::int64_t kUnit = 32;
    size = count == 1 ? extent : ((extent + count - 1) / count + kUnit - 1) / kUnit * kUnit;
    count = (extent + size - 1) / size;
    last = extent - (count - 1) * size;
  }
  bool is_last(std::int64_t i) const { return i + 1 == count; }
};

class NativeGemm final : public HalfGemm::Plan {
 public:
  explicit NativeGemm(const HalfProduct& product)
      : g_(product.batch),
        result_bytes_(bit_width(product.result) / 8),
        end_(product),
        rows_(g_.m, kRows),
        cols_(g_.n, kColumns) {
    for (bool last_row : {false, true}) {
      for (bool last_col : {false, true}) {
        if ((!last_row && rows_.count == 1) || (!last_col && cols_.count == 1)) continue;
        const std::int64_t width = last_col ? cols_.last : cols_.size;
        PieceProduct piece(g_, last_row ? rows_.last : rows_.size, width, end_.is_nothing() ? g_.ldc : width);
        is_fast_ = is_fast_ && piece.is_fast;
        pieces_[kind(last_row, last_col)] = std::move(piece);
      }
    }
  }

  bool is_fast() const { return is_fast_; }

  void run(const void* a, const void* b, const void* addend, void* c) const override {
    const std::int64_t per_product = rows_.count * cols_.count;
    const std::int64_t work = rows_.size * cols_.size * g_.k;
    parallel_for(element_count(g_.batch) * per_product, grain_for(work, 1 << 18),
                 [&](std::int64_t begin, std::int64_t end) {
                   ThreadScope alone(1);
                   run_pieces(begin, end, a, b, addend, c);
                 });
  }

 private:
  static std::size_t kind(bool last_row, bool last_col) { return (last_row ? 2U : 0U) + (last_col ? 1U : 0U); }

  void run_pieces(std::int64_t begin, std::int64_t end, const void* a, const void* b, const void* addend,
                  void* c) const {
    std::array<std::unique_ptr<PieceRun>, 4> runs;
    const std::int64_t per_product = rows_.count * cols_.count;
    float* sums = thread_buffer<float, kSums>(rows_.size * cols_.size);
    for (std::int64_t at = begin; at < end; ++at) {
      // Pieces that share columns of B follow each other.
      const std::int64_t i = at % per_product % rows_.count;
      const std::int64_t j = at % per_product / rows_.count;
      const std::size_t which = kind(rows_.is_last(i), cols_.is_last(j));
      if (runs[which] == nullptr) runs[which] = std::make_unique<PieceRun>(pieces_[which]);
      const std::int64_t i0 = i * rows_.size;
      const std::int64_t j0 = j * cols_.size;
      const std::int64_t height = rows_.is_last(i) ? rows_.last : rows_.size;
      const std::int64_t width = cols_.is_last(j) ? cols_.last : cols_.size;
      at_product(g_, at / per_product, [&](std::int64_t at_a, std::int64_t at_b, std::int64_t at_c) {
        const std::int64_t skip_a = g_.trans_a ? i0 : i0 * g_.lda;
        const std::int64_t skip_b = g_.trans_b ? j0 * g_.ldb : j0;
        const std::byte* from_a = half_at(a, at_a + skip_a);
        const std::byte* from_b = half_at(b, at_b + skip_b);
        if (end_.is_nothing()) {
          runs[which]->run(from_a, from_b, static_cast<float*>(c) + at_c + i0 * g_.ldc + j0);
          return;
        }
        runs[which]->run(from_a, from_b, sums);
        end_.store(sums, width, i0, height, j0, width, addend, static_cast<std::byte*>(c) + at_c * result_bytes_);
      });
    }
  }

  GemmBatch g_;
  std::int64_t result_bytes_;
  HalfEnd end_;
  Parts rows_, cols_;
  std::array<PieceProduct, 4> pieces_;  ///< by kind(): with the last rows, the last columns
  bool is_fast_ = true;
};

}  // namespace

bool multiplies_bfloat16() {
  static const bool does = [] {
    constexpr auto kWanted = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
    return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kWanted) == kWanted;
  }();
  return does;
}

std::shared_ptr<const HalfGemm::Plan> native_half_gemm(const HalfProduct& product) {
  const GemmBatch& g = product.batch;
  const bool is_empty = g.m == 0 || g.n == 0 || g.k == 0 || element_count(g.batch) == 0;
  if (product.dtype != DType::bfloat16 || is_empty || !multiplies_bfloat16()) return nullptr;
  auto plan = std::make_shared<NativeGemm>(product);
  return plan->is_fast() ? plan : nullptr;
}

}  // namespace backpass
