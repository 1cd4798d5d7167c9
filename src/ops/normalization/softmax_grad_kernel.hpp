// Gradients of softmax and log-softmax from their results:
//   softmax: dx = y * (dy - sum(dy * y)); log-softmax: dx = dy - exp(y) * sum(dy)
#pragma once

#include <cstdint>

namespace backpass {

/// Over axis `n` of tensors seen as [outer, n, inner], in parallel. dx may be dy or y.
template <class T>
void softmax_grad(const T* dy, const T* y, T* dx, std::int64_t outer, std::int64_t n, std::int64_t inner, bool log);
extern template void softmax_grad(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t, bool);
extern template void softmax_grad(const double*, const double*, double*, std::int64_t, std::int64_t, std::int64_t,
                                  bool);

}  // namespace backpass
