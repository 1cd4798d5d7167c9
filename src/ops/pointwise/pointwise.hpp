// What pointwise operators share besides the tile engine: registration, and known integer contents for shape
// arithmetic.
#pragma once

#include <optional>

#include "ops/pointwise/tile_op.hpp"

namespace backpass {

/// Registers a pointwise operator: `def` needs no infer, prepare or arity where the tile description says it all.
class RegisterPointwise {
 public:
  RegisterPointwise(OpDef def, const TileOp& tile);

 private:
  TileOp tile_;
};

/// Functions that other operators build on.
const TileFunction& tile_add();
const TileFunction& tile_mul();
const TileFunction& tile_div();

/// Contents of output 0 from those of two small integer inputs, which broadcast. nullopt from `f` means not known.
void propagate_ints(InferContext&, std::optional<Dim> (*f)(const Dim&, const Dim&));

/// infer_tile, then the contents folded over all inputs with a function that always has a result.
template <Dim (*F)(const Dim&, const Dim&)>
void infer_tile_with_ints(InferContext& c) {
  infer_tile(c);
  propagate_ints(c, [](const Dim& a, const Dim& b) { return std::optional<Dim>(F(a, b)); });
}

}  // namespace backpass
