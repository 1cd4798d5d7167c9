// One step of the optimizers, element by element. Outputs may be the inputs.
#pragma once

#include <cmath>
#include <cstdint>

#include "support/parallel.hpp"

namespace backpass {

struct AdamW {
  double rate = 0.001;
  double alpha = 0.9;   ///< decay of the first moment
  double beta = 0.999;  ///< decay of the second moment
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool correct_bias = true;
  /// Decay the weight before the step (as torch does); otherwise after it (as Hugging Face did).
  bool decay_first = true;
  double step = 1;
};

/// The numbers of one step that are the same for every element.
struct AdamWFactors {
  double rate;         ///< of the moment quotient
  double root_scale;   ///< of sqrt(second moment)
  double keep_before;  ///< weight factor before the step
  double keep_after;   ///< weight factor after the step
};

inline AdamWFactors adamw_factors(const AdamW& p) {
  double first = p.correct_bias ? 1 - std::pow(p.alpha, p.step) : 1;
  double second = p.correct_bias ? 1 - std::pow(p.beta, p.step) : 1;
  double keep = 1 - p.rate * p.weight_decay;
  if (p.decay_first) return {p.rate / first, 1 / std::sqrt(second), keep, 1};
  return {p.rate * std::sqrt(second) / first, 1, 1, keep};
}

template <class T>
void adamw_step(const AdamW& p, std::int64_t n, const T* w, const T* g, const T* m, const T* v, T* w_out, T* m_out,
                T* v_out) {
  constexpr std::int64_t kGrain = 1 << 13;
  AdamWFactors f = adamw_factors(p);
  auto alpha = static_cast<T>(p.alpha);
  auto beta = static_cast<T>(p.beta);
  auto new_alpha = static_cast<T>(1 - p.alpha);
  auto new_beta = static_cast<T>(1 - p.beta);
  auto root = static_cast<T>(f.root_scale);
  auto epsilon = static_cast<T>(p.epsilon);
  auto rate = static_cast<T>(f.rate);
  auto before = static_cast<T>(f.keep_before);
  auto after = static_cast<T>(f.keep_after);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T first = alpha * m[i] + new_alpha * g[i];
      T second = beta * v[i] + new_beta * g[i] * g[i];
      m_out[i] = first;
      v_out[i] = second;
      w_out[i] = (w[i] * before - rate * first / (std::sqrt(second) * root + epsilon)) * after;
    }
  });
}

/// w - rate * g
template <class T>
void sgd_step(double rate, std::int64_t n, const T* w, const T* g, T* w_out) {
  constexpr std::int64_t kGrain = 1 << 14;
  auto r = static_cast<T>(rate);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) w_out[i] = w[i] - r * g[i];
  });
}

}  // namespace backpass
