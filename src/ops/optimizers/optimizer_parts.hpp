// What the loops of the optimizers are given.
#pragma once

#include <cmath>

#include "ops/optimizers/optimizer.hpp"

namespace backpass {

/// The numbers of one step that are the same for every element.
template <class T>
struct AdamWFactors {
  T alpha, new_alpha, beta, new_beta, epsilon;
  T rate;         ///< of the moment quotient
  T root_scale;   ///< of sqrt(second moment)
  T keep_before;  ///< weight factor before the step
  T keep_after;   ///< weight factor after the step
};

template <class T>
AdamWFactors<T> adamw_factors(const AdamW& p) {
  const double first = p.correct_bias ? 1 - std::pow(p.alpha, p.step) : 1;
  const double second = p.correct_bias ? 1 - std::pow(p.beta, p.step) : 1;
  const double keep = 1 - p.rate * p.weight_decay;
  return {static_cast<T>(p.alpha),
          static_cast<T>(1 - p.alpha),
          static_cast<T>(p.beta),
          static_cast<T>(1 - p.beta),
          static_cast<T>(p.epsilon),
          static_cast<T>(p.decay_first ? p.rate / first : p.rate * std::sqrt(second) / first),
          static_cast<T>(p.decay_first ? 1 / std::sqrt(second) : 1),
          static_cast<T>(p.decay_first ? keep : 1),
          static_cast<T>(p.decay_first ? 1 : keep)};
}

/// What one step of one piece reads and writes.
template <class T>
struct AdamWPiece {
  const T *w, *g, *m, *v;
  T *w_out, *m_out, *v_out;
};

}  // namespace backpass
