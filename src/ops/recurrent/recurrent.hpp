// What LSTM, GRU and RNN (and their training forms) have in common: attributes, shape rule, preparation.
#pragma once

#include <vector>

#include "graph/op.hpp"
#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {

/// One entry per direction, from the attributes.
std::vector<CellSpec> cell_specs(const Node& node, CellKind kind);

/// Which outputs an operator has, by position; -1: not at all.
struct RecurrentOutputs {
  int y = 0;
  int y_h = 1;
  int y_c = -1;
  int all_c = -1;
  int gates = -1;
};

/// Checks all inputs and sets the outputs' types.
void infer_recurrent(InferContext& context, CellKind kind, const RecurrentOutputs& outputs);

/// The kernel for float32 and float64.
Kernel prepare_recurrent(PrepareContext& context, CellKind kind, const RecurrentOutputs& outputs);

}  // namespace backpass
