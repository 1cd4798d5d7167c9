// Activation functions of recurrent layers.
#pragma once

#include <cstdint>
#include <limits>

namespace backpass {

enum class ActivationKind : std::uint8_t {
  sigmoid,
  tanh,
  relu,
  affine,
  leaky_relu,
  thresholded_relu,
  scaled_tanh,
  hard_sigmoid,
  elu,
  softsign,
  softplus,
};

struct Activation {
  ActivationKind kind = ActivationKind::tanh;
  float alpha = 0;
  float beta = 0;
};

/// x[i] = f(x[i]), after limiting x to [-clip, clip].
template <class T>
void activate(const Activation& f, T clip, T* x, std::int64_t count);

template <class T>
inline constexpr T kNoClip = std::numeric_limits<T>::infinity();

}  // namespace backpass
