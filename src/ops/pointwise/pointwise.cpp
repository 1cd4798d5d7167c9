#include "ops/pointwise/pointwise.hpp"

#include <algorithm>

namespace backpass {

RegisterPointwise::RegisterPointwise(OpDef def, const TileOp& tile) : tile_(tile) {
  def.tile = &tile_;
  def.prepare = def.prepare == nullptr ? prepare_tile : def.prepare;
  def.infer = def.infer == nullptr ? infer_tile : def.infer;
  if (def.in_place_input < 0) def.in_place_input = 0;
  if (tile.function != nullptr) def.inputs = {tile.function->arity, tile.function->arity};
  Register{def};
}

void propagate_ints(InferContext& c, std::optional<Dim> (*f)(const Dim&, const Dim&)) {
  if (!is_integer(c.dtype(0)) && c.dtype(0) != DType::boolean) return;
  std::optional<std::vector<Dim>> result = c.maybe_ints(0);
  for (std::size_t i = 1; result && i < c.input_count(); ++i) {
    std::optional<std::vector<Dim>> other = c.maybe_ints(i);
    if (!other || other->empty() || result->empty()) return;
    std::size_t n = std::max(result->size(), other->size());
    if ((result->size() != n && result->size() != 1) || (other->size() != n && other->size() != 1)) return;
    std::vector<Dim> values;
    for (std::size_t k = 0; k < n; ++k) {
      std::optional<Dim> value = unless_it_overflows(
          [&] { return f((*result)[result->size() == 1 ? 0 : k], (*other)[other->size() == 1 ? 0 : k]); });
      if (!value) return;
      values.push_back(*std::move(value));
    }
    result = std::move(values);
  }
  if (result && !c.outputs.empty() && c.outputs[0].shape && c.outputs[0].shape->size() <= 1) {
    c.set_ints(0, *std::move(result));
  }
}

}  // namespace backpass
