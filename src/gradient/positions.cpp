#include "gradient/positions.hpp"

namespace backpass {

Value* count_up(GradientContext& g, Value* count) { return g.op("Range", {g.b.integer(0), count, g.b.integer(1)}); }

Value* positions_of(GradientContext& g, Value* a) { return g.reshape_like(count_up(g, g.size_of(a)), a); }

Value* add_at(GradientContext& g, Value* positions, Value* dy, Value* x) {
  Value* zeros = g.op("Expand", {g.zero(x), g.reshape(g.size_of(x), {1})});
  Value* sum = g.op("ScatterElements", {zeros, g.reshape(positions, {-1}), g.reshape(dy, {-1})},
                    {{"reduction", std::string("add")}});
  return g.reshape_like(sum, x);
}

namespace {

/// 0 ... rank-1 with the `count` axes from `axis` on moved to the front; and back.
std::vector<std::int64_t> to_front(std::int64_t rank, std::int64_t axis, std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = axis; i < axis + count; ++i) order.push_back(i);
  for (std::int64_t i = 0; i < rank; ++i) {
    if (i < axis || i >= axis + count) order.push_back(i);
  }
  return order;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return back;
}

}  // namespace

Value* add_slices_at(GradientContext& g, Value* indices, Value* dy, Value* x, std::int64_t axis) {
  const std::int64_t rank = g.rank(x);
  const std::int64_t at = axis < 0 ? axis + rank : axis;
  Value* tuples = g.unsqueeze(g.cast(indices, DType::int64), {-1});
  const AttributeList add{{"reduction", std::string("add")}};
  if (at == 0) return g.op("ScatterND", {g.zeros_like(x), tuples, dy}, add);
  const std::vector<std::int64_t> order = to_front(rank, at, 1);
  Value* shape = g.shape_of(x);
  shape = g.gather(shape, g.b.ints(order), 0);
  Value* zeros = g.op("Expand", {g.zero(x), shape});
  Value* updates = g.transpose(dy, to_front(g.rank(dy), at, g.rank(indices)));
  return g.transpose(g.op("ScatterND", {zeros, tuples, updates}, add), inverse(order));
}

Value* vector_of(GradientContext& g, const std::vector<Value*>& scalars) {
  std::vector<Value*> parts;
  parts.reserve(scalars.size());
  for (Value* v : scalars) parts.push_back(g.reshape(v, {1}));
  return parts.size() == 1 ? parts[0] : g.concat(std::move(parts), 0);
}

AttributeList attributes_of(const Node& node) { return {node.attributes.begin(), node.attributes.end()}; }

}  // namespace backpass
