// One step of a recurrent layer in standard operators.
#pragma once

#include "graph/builder.hpp"
#include "ops/recurrent/recurrent_kernel.hpp"

namespace backpass {

/// What a step reads, inside the body that runs it; optional ones are null.
struct CellInputs {
  Value* projected = nullptr;    ///< [batch, gates * hidden]: the input side with its bias
  Value* recurrence = nullptr;   ///< [hidden, gates * hidden]
  Value* hidden_bias = nullptr;  ///< GRU with linear_before_reset: [gates * hidden], the hidden side's own bias
  Value* h = nullptr;
  Value* c = nullptr;
  Value* peephole_i = nullptr;  ///< [hidden] each
  Value* peephole_o = nullptr;
  Value* peephole_f = nullptr;
};

struct CellState {
  Value* h = nullptr;
  Value* c = nullptr;
};

CellState write_cell(Builder& b, const CellSpec& spec, const CellInputs& in);

}  // namespace backpass
