// What LinearCrossEntropy and LinearCrossEntropyGrad have in common: inputs x, weight, labels, bias and class_weights
// in a row, gradients of x, weight and bias, attributes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "graph/op.hpp"
#include "ops/losses/linear_loss.hpp"
#include "ops/losses/loss.hpp"

namespace backpass {

/// Checks inputs from `first` on, sets types and shapes of the gradients, outputs from `gradients` on, as far as there
/// are any. Gives the number of rows.
Dim infer_linear_loss(InferContext& c, std::size_t first, std::size_t gradients);

/// Attribute label_smoothing, as the decimal number it was written as: 0.1, not what float32 makes of it.
double label_smoothing(const Node& node);

class LinearLossNode {
 public:
  /// Reserves scratch memory.
  LinearLossNode(PrepareContext& c, std::size_t first, std::size_t gradients);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return shape_.rows; }

  /// Computes losses, which stay in scratch memory, and gradients; for the mean of the losses when `is_mean`. `flows`
  /// to the loss of each row may be null. Gives the weight of all labels that count.
  double run(const KernelArgs& a, const void* flows, bool is_mean) const;
  const double* losses(const KernelArgs& a) const { return reinterpret_cast<const double*>(a.scratch + losses_); }

 private:
  template <class T>
  double run_as(const KernelArgs& a, const T* flows, bool is_mean) const;

  std::size_t first_, gradients_;
  DType dtype_, weight_type_, label_type_;
  DType rounded_ = DType::undefined;
  bool has_bias_, has_weights_;
  bool wants_[3];
  LinearLossShape shape_;
  std::shared_ptr<HalfGemmCache> products_;
  double smoothing_;
  std::optional<std::int64_t> ignore_;
  std::string where_;
  std::size_t work_, losses_, rows_, labels_, weights_;
};

}  // namespace backpass
