// One step of the optimizers, element by element. Outputs may be the inputs.
#pragma once

#include <cstdint>

#include "backpass/optimizer.hpp"

namespace backpass {

/// The numbers of a step that are the same for every element of a weight.
struct StepFactors {
  double gradient_scale = 1;   ///< of gradients as they are read
  double gradient_decay = 0;   ///< times the weight is added to the gradient
  double rate = 0;             ///< of the gradient (sgd), of the quotient of moments
  double alpha = 0, beta = 0;  ///< decay of the moments
  double epsilon = 0;
  double root_scale = 1;       ///< of sqrt(second moment)
  double keep_before = 1;      ///< weight factor before the step
  double keep_after = 1;       ///< weight factor after the step
  double direction_decay = 0;  ///< lamb: times the weight is added to the quotient of moments
};

/// Gradients are multiplied by `gradient_scale` as they are read; `step` counts from 1.
StepFactors sgd_factors(const WeightSettings& settings, double rate, double gradient_scale = 1);
StepFactors adam_factors(const WeightSettings& settings, double rate, double step, double gradient_scale = 1);
StepFactors lamb_factors(const WeightSettings& settings, double step, double gradient_scale = 1);

/// What a step reads and writes of some elements; sgd has no moments.
template <class T>
struct StepPiece {
  const T *w, *g, *m, *v;
  T *w_out, *m_out, *v_out;

  StepPiece from(std::int64_t i) const {
    if (m == nullptr) return {w + i, g + i, nullptr, nullptr, w_out + i, nullptr, nullptr};
    return {w + i, g + i, m + i, v + i, w_out + i, m_out + i, v_out + i};
  }
};

template <class T>
StepPiece<T> sgd_tensors(const T* w, const T* g, T* w_out) {
  return {w, g, nullptr, nullptr, w_out, nullptr, nullptr};
}

/// On this thread, n elements. T: float, double.
template <class T>
void sgd_piece(const StepFactors& factors, const StepPiece<T>& piece, std::int64_t n);
template <class T>
void adam_piece(const StepFactors& factors, const StepPiece<T>& piece, std::int64_t n);

/// The same on all threads.
template <class T>
void sgd_step(const StepFactors& factors, const StepPiece<T>& piece, std::int64_t n);
template <class T>
void adam_step(const StepFactors& factors, const StepPiece<T>& piece, std::int64_t n);

}  // namespace backpass
