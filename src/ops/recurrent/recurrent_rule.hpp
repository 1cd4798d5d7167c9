// Derivatives of LSTM, GRU and RNN.
#pragma once

#include "gradient/rule.hpp"
#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {

/// Through the layer written as a Scan over the steps: everything the operators allow.
template <CellKind kind>
void recurrent_gradient_rule(GradientContext& g);

/// By LSTMGrad or GRUGrad where they apply: the forward node becomes LSTMTraining or GRUTraining.
template <CellKind kind>
void recurrent_fused_gradient_rule(GradientContext& g);

}  // namespace backpass
