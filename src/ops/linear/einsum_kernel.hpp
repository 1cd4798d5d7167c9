// Sums of products over labelled axes: out[output labels] = sum over the other labels of the product of all operands.
//
// Operands are joined two at a time, from left to right. A label that only one operand still needs is summed out at
// once; a join with a label to sum over becomes a batched matrix product, on the operands' own memory where strides
// allow.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "backpass/dtype.hpp"
#include "backpass/tensor.hpp"
#include "kernels/gemm.hpp"
#include "kernels/reduce.hpp"
#include "kernels/strided_copy.hpp"

namespace backpass {

/// Labels are small numbers; a label may occur several times in a term (diagonal) but once in the output.
struct EinsumLabels {
  std::vector<std::vector<int>> terms;
  std::vector<int> output;
};

class EinsumPlan {
 public:
  /// `dtype` is float32, float64 or uint64. Extents of a label must agree between operands, or be 1 (broadcast).
  EinsumPlan(const EinsumLabels& labels, std::span<const Dims> operands, DType dtype);

  /// Elements of scratch memory.
  std::int64_t scratch_size() const { return scratch_; }

  /// T is the type of `dtype`.
  template <class T>
  void run(const void* const* inputs, T* output, T* scratch) const;

 private:
  static constexpr std::int64_t kOutput = -1;
  static constexpr int kScratch = -1;

  /// Some tensor: where it is, and its axes with extent above 1.
  struct View {
    int input = kScratch;
    std::int64_t offset = 0;
    std::vector<int> labels;
    Dims strides;
  };
  enum class Kind : std::uint8_t { copy, sum, multiply, product };
  struct Step {
    Kind kind = Kind::copy;
    View a, b;
    std::int64_t to = 0;  ///< offset in scratch memory, or kOutput
    kernels::StridedCopy copy;
    Reduction reduction;
    std::int64_t partial = 0;  ///< scratch of the reduction
    GemmBatch gemm;
    Dims extents;  ///< multiply: extents of the result, with strides of a and b
    Dims a_strides, b_strides;
  };
  /// Axes that act as one: their joint extent and the stride of the last one.
  struct Merged {
    bool possible;
    std::int64_t extent, stride;
  };

  std::int64_t extent(int label) const { return extents_.at(label); }
  std::int64_t stride(const View& v, int label) const;
  Dims strides_in(const View& v, const std::vector<int>& labels) const;
  Dims dims_of(const std::vector<int>& labels) const;
  Merged merge(const View& v, const std::vector<int>& labels) const;
  View fresh(const std::vector<int>& labels);
  View operand(const std::vector<int>& term, const Dims& dims, int input) const;
  View arranged(const View& v, const std::vector<int>& labels);
  View sum_out(const View& v, const std::vector<int>& keep);
  View join(View a, View b, const std::vector<int>& keep, bool last);
  View multiply(const View& a, const View& b, const std::vector<int>& labels);
  View matrix_product(View a, View b, const std::vector<int>& batch, const std::vector<int>& summed,
                      const std::vector<int>& rows, const std::vector<int>& columns, bool last);
  void finish(const View& v);
  Step& add_step(Kind kind, const View& a, const View& b, std::int64_t to);

  template <class T>
  void run_multiply(const Step& step, const T* a, const T* b, T* to) const;

  DType dtype_;
  std::map<int, std::int64_t> extents_;
  std::vector<int> output_;  ///< labels with extent above 1
  std::vector<Step> steps_;
  std::int64_t scratch_ = 0;
  std::int64_t output_size_ = 1;
  bool is_zero_ = false;  ///< an extent is 0
};

}  // namespace backpass
