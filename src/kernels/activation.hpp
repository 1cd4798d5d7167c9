// Activation functions of recurrent layers, and the element-wise part of their usual cells.
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

/// One row of an LSTM with sigmoid gates and tanh: `gates` holds i, o, f, c before activation and receives them after;
/// `cell` and `hidden` are updated.
void lstm_row(float* gates, float* cell, float* hidden, std::int64_t hidden_size);

/// One row of a GRU with sigmoid gates and tanh: `gates` holds z, r, h of the input side, `recurrent` those of the
/// hidden side (bias included), h of which is multiplied by r. `gates` receives them after activation; `hidden` is
/// updated.
void gru_row(float* gates, const float* recurrent, float* hidden, std::int64_t hidden_size);

}  // namespace backpass
