// One step of the optimizers, element by element. Outputs may be the inputs.
#pragma once

#include <cstdint>

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

/// One step of n elements, in parallel.
template <class T>
void adamw_step(const AdamW& p, std::int64_t n, const T* w, const T* g, const T* m, const T* v, T* w_out, T* m_out,
                T* v_out);
extern template void adamw_step(const AdamW&, std::int64_t, const float*, const float*, const float*, const float*,
                                float*, float*, float*);
extern template void adamw_step(const AdamW&, std::int64_t, const double*, const double*, const double*, const double*,
                                double*, double*, double*);

/// w - rate * g, in parallel.
template <class T>
void sgd_step(double rate, std::int64_t n, const T* w, const T* g, T* w_out);
extern template void sgd_step(double, std::int64_t, const float*, const float*, float*);
extern template void sgd_step(double, std::int64_t, const double*, const double*, double*);

}  // namespace backpass
