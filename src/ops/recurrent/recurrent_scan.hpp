// LSTM, GRU and RNN written in standard operators: one Scan over the steps per direction.
#pragma once

#include <vector>

#include "graph/builder.hpp"
#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {

/// Y, Y_h and (LSTM) Y_c.
std::vector<Value*> write_recurrent_scan(Builder& b, const Node& node, CellKind kind);

}  // namespace backpass
