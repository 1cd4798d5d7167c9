// Cross entropy of softmax(x W' + bias) against labels, and its gradients, some rows at a time: the scores of all rows
// never exist together. Rows whose label is ignored are not computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ops/losses/loss.hpp"

namespace backpass {

struct LinearLossShape {
  std::int64_t rows;
  std::int64_t features;
  std::int64_t classes;
  bool classes_first;  ///< weight is [classes, features], else [features, classes]
};

/// How many rows are worked on together at most.
std::int64_t rows_at_once(const LinearLossShape& shape, std::size_t element_bytes);

/// What is read and written; null for what is absent or not wanted.
template <class T>
struct LinearLossData {
  const T* x;
  const T* weight;
  const T* bias;
  double* losses;  ///< one per row, times the weight of its label
  T* dx;           ///< gradients of the sum, or mean, of the losses
  T* dweight;
  T* dbias;

  bool wants_gradients() const { return dx != nullptr || dweight != nullptr || dbias != nullptr; }
};

/// The rows that count, with their labels and the weights of those; there is room for all rows.
template <class T>
struct CountedRows {
  std::int64_t count = 0;
  double total = 0;  ///< of the weights
  std::int64_t* rows;
  std::int64_t* labels;
  T* weights;
};

std::size_t linear_loss_scratch(const LinearLossShape& shape, std::size_t element_bytes, bool wants_gradients);

/// `divisor` of all gradients: 1 for the sum.
template <class T>
void linear_loss(const LinearLossShape& shape, const LinearLossData<T>& data, const CountedRows<T>& counted,
                 double divisor, std::byte* scratch);

extern template void linear_loss(const LinearLossShape&, const LinearLossData<float>&, const CountedRows<float>&,
                                 double, std::byte*);
extern template void linear_loss(const LinearLossShape&, const LinearLossData<double>&, const CountedRows<double>&,
                                 double, std::byte*);

}  // namespace backpass
