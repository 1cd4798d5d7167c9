// How nodes become tile programs (kernels/tile.hpp): the operator's half of the tile engine.
#pragma once

#include <span>

#include "graph/op.hpp"
#include "kernels/tile.hpp"

namespace backpass {

/// A node being turned into instructions.
struct TileEmit {
  const Node& node;
  std::span<const TileRegister> inputs;  ///< kNoRegister where omitted
  TileBuilder& builder;

  bool has(std::size_t i) const { return i < inputs.size() && inputs[i] != kNoRegister; }
};

/// How a pointwise operator computes its only output. Give `function`, or `emit` when it takes more than one.
struct TileOp {
  const TileFunction* function = nullptr;
  TileParams (*params)(const Node&) = nullptr;  ///< from attributes, for `function`
  TileRegister (*emit)(TileEmit&) = nullptr;
};

/// Appends the node's instructions; `inputs` are the registers of its inputs. Returns the register of its output.
TileRegister emit_tile(const Node& node, std::span<const TileRegister> inputs, TileBuilder& builder);

/// `infer` of pointwise operators: inputs broadcast, all of one type, the output has that type (bool if the function
/// says so).
void infer_tile(InferContext&);
/// `prepare` of pointwise operators.
Kernel prepare_tile(PrepareContext&);

}  // namespace backpass
