// What was padded is cut off again, what was cut off comes back as zeros.
#include "ops/movement/pad_rule.hpp"

#include "gradient/positions.hpp"

namespace backpass {
namespace {

Value* padded(GradientContext& g, Value* data, Value* pads, Value* fill, const AttributeList& attributes = {}) {
  std::vector<Value*> inputs{data, pads, fill};
  if (g.has_input(3)) inputs.push_back(g.x(3));
  return g.op("Pad", std::move(inputs), attributes);
}

Value* negated_pads(GradientContext& g) {
  if (!g.x(1)->constant) return g.neg(g.x(1));
  std::vector<std::int64_t> pads = g.x(1)->constant->to_ints();
  for (std::int64_t& p : pads) p = -p;
  return g.b.ints(std::move(pads));
}

void fill_gradient(GradientContext& g) {
  if (!g.wants(2)) return;
  Value* is_fill = g.cast(padded(g, g.zeros_like(g.x()), g.x(1), g.one(g.x())), DType::boolean);
  Value* sum = g.op("ReduceSum", {g.where(is_fill, g.dy(), g.zero(g.dy()))}, {{"keepdims", std::int64_t{0}}});
  g.set(2, g.reshape_like(sum, g.x(2)));
}

}  // namespace

void pad_gradient(GradientContext& g) {
  const std::string mode = g.node.attr_string("mode", "constant");
  if (mode == "constant") {
    g.set(0, padded(g, g.dy(), negated_pads(g), nullptr));
    return fill_gradient(g);
  }
  g.set(0, add_at(g, padded(g, positions_of(g, g.x()), g.x(1), nullptr, {{"mode", mode}}), g.dy(), g.x()));
  g.set_zero(2);
}

void center_crop_pad_gradient(GradientContext& g) {
  Value* shape = g.shape_of(g.x());
  if (!g.node.has_attribute("axes")) return g.set(0, g.op("CenterCropPad", {g.dy(), shape}));
  std::vector<std::int64_t> axes = g.node.attr_ints("axes");
  const std::int64_t rank = g.rank(g.x());
  for (std::int64_t& a : axes) a += a < 0 ? rank : 0;
  Value* extents = g.gather(shape, g.b.ints(axes), 0);
  g.set(0, g.op("CenterCropPad", {g.dy(), extents}, {{"axes", axes}}));
}

}  // namespace backpass
