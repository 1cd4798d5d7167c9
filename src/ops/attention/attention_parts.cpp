#include "ops/attention/attention_parts.hpp"

namespace backpass::attention_parts {

Value* extent(GradientContext& g, Value* v, std::int64_t axis) {
  if (axis < 0) axis += g.rank(v);
  const Dim* d = v->type.shape ? &v->type.shape->at(static_cast<std::size_t>(axis)) : nullptr;
  if (d != nullptr && d->is_known()) return g.b.ints({d->value()});
  return g.op("Shape", {v}, {{"start", axis}, {"end", axis + 1}});
}

Value* split_last_axis(GradientContext& g, Value* v, std::int64_t outer) {
  const std::int64_t last = g.rank(v) - 1;
  std::vector<Value*> shape;
  for (std::int64_t i = 0; i < last; ++i) shape.push_back(extent(g, v, i));
  shape.push_back(g.b.ints({outer}));
  shape.push_back(g.op("Div", {extent(g, v, last), g.b.ints({outer})}));
  return g.reshape_to(v, g.concat(shape, 0));
}

Value* join_last_axes(GradientContext& g, Value* v) {
  const std::int64_t rank = g.rank(v);
  std::vector<Value*> shape;
  for (std::int64_t i = 0; i < rank - 2; ++i) shape.push_back(extent(g, v, i));
  shape.push_back(g.mul(extent(g, v, rank - 2), extent(g, v, rank - 1)));
  return g.reshape_to(v, g.concat(shape, 0));
}

Value* to_heads(GradientContext& g, Value* v, std::int64_t heads) {
  return g.transpose(split_last_axis(g, v, heads), {0, 2, 1, 3});
}

Value* repeat_heads(GradientContext& g, Value* v, Value* query) {
  const Dim& have = v->type.shape->at(1);
  const Dim& want = query->type.shape->at(1);
  if (have == want) return v;
  Value* heads = extent(g, query, 1);
  Value* group = g.op("Div", {heads, extent(g, v, 1)});
  Value* shape = g.concat({extent(g, v, 0), extent(g, v, 1), group, extent(g, v, 2), extent(g, v, 3)}, 0);
  Value* repeated = g.op("Expand", {g.unsqueeze(v, {2}), shape});
  return g.reshape_to(repeated, g.concat({extent(g, v, 0), heads, extent(g, v, 2), extent(g, v, 3)}, 0));
}

Value* scale_for(GradientContext& g, Value* v) {
  if (g.node.has_attribute("scale")) return g.number(g.node.attr_float("scale", 1), v);
  return g.reciprocal(g.sqrt(g.cast_like(g.extent(v, -1), v)));
}

}  // namespace backpass::attention_parts
