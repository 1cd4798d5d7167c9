// Gradients of LSTM and GRU layers with the usual activations (sigmoid gates, tanh), from what the forward run kept.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {

/// Whole tensors, sequences ordered [steps, directions, batch, ...]. Optional ones may be null.
template <class T>
struct RecurrentGradTensors {
  const T* x = nullptr;
  const T* w = nullptr;
  const T* r = nullptr;
  const T* bias = nullptr;
  const std::int32_t* lengths = nullptr;
  const T* initial_h = nullptr;
  const T* initial_c = nullptr;
  const T* peepholes = nullptr;
  const T* all_h = nullptr;
  const T* all_c = nullptr;
  const T* gates = nullptr;  ///< activated
  const T* grad_all_h = nullptr;
  const T* grad_h = nullptr;
  const T* grad_c = nullptr;

  T* grad_x = nullptr;
  T* grad_w = nullptr;
  T* grad_r = nullptr;
  T* grad_bias = nullptr;
  T* grad_initial_h = nullptr;
  T* grad_initial_c = nullptr;
  T* grad_peepholes = nullptr;
};

/// Elements of working memory that recurrent_gradient needs.
std::int64_t recurrent_grad_scratch(const RecurrentLayout& layout, CellKind kind);

/// `directions` are of kind lstm or gru; layout.batch_first must be false.
template <class T>
void recurrent_gradient(const RecurrentLayout& layout, const std::vector<CellSpec>& directions,
                        const RecurrentGradTensors<T>& tensors, T* scratch);

}  // namespace backpass
