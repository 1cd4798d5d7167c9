// Cross entropy of softmax(x W' + bias) against labels, and its gradients, some rows at a time: the scores of all rows
// never exist together. Rows whose label is ignored are not computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backpass/dtype.hpp"
#include "kernels/half_gemm.hpp"

namespace backpass {

struct LinearLossShape {
  std::int64_t rows;
  std::int64_t features;
  std::int64_t classes;
  bool classes_first;  ///< weight is [classes, features], else [features, classes]
  bool wants_gradients;
  bool converts_weight = false;    ///< it is stored, or rounded, in another type than the work is done in
  bool multiplies_narrow = false;  ///< products of bfloat16: x and gradients of scores are rounded as the weight is
  std::int64_t rows_at_once = 0;   ///< as asked for; 0: as measurements say
};

/// The weights as they are stored.
struct StoredWeight {
  const void* data;
  DType dtype;
  DType rounded = DType::undefined;  ///< what they are rounded to before they are used; undefined: as they are
};

/// What is read and written; null for what is absent or not wanted.
template <class T>
struct LinearLossData {
  const T* x;
  StoredWeight weight;
  const T* bias;
  const T* class_weights;  ///< all classes have a share in the loss by these; null: the same weight
  double share;            ///< of each class in the loss, beside the label: 0 without label smoothing
  const T* flows;          ///< what flows back to the loss of each row; null: 1
  double divisor;          ///< of all gradients
  double* losses;          ///< one per row
  T* dx;
  T* dweight;
  T* dbias;
  HalfGemmCache* products = nullptr;  ///< of bfloat16; there where the shape wants them
};

/// The rows that count, with their labels and the weights of those in the loss; there is room for all rows.
template <class T>
struct CountedRows {
  std::int64_t count = 0;
  std::int64_t* rows;
  std::int64_t* labels;
  T* weights;
};

/// How many rows are worked on together at most.
std::int64_t rows_at_once(const LinearLossShape& shape, std::size_t element_bytes);

std::size_t linear_loss_scratch(const LinearLossShape& shape, std::size_t element_bytes);

template <class T>
void linear_loss(const LinearLossShape& shape, const LinearLossData<T>& data, const CountedRows<T>& counted,
                 std::byte* scratch);

extern template void linear_loss(const LinearLossShape&, const LinearLossData<float>&, const CountedRows<float>&,
                                 std::byte*);
extern template void linear_loss(const LinearLossShape&, const LinearLossData<double>&, const CountedRows<double>&,
                                 std::byte*);

}  // namespace backpass
