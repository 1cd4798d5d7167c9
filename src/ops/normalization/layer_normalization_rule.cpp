#include "ops/normalization/layer_normalization_rule.hpp"

#include "gradient/forward_output.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

std::int64_t first_axis(GradientContext& g) {
  const std::int64_t axis = g.node.attr_int("axis", -1);
  return axis < 0 ? axis + g.rank(g.x(0)) : axis;
}

Standardized rows_of(GradientContext& g, bool centered) {
  std::vector<std::int64_t> axes;
  for (std::int64_t i = first_axis(g); i < g.rank(g.x(0)); ++i) axes.push_back(i);
  return standardize(g, g.x(0), std::move(axes), g.node.attr_float("epsilon", 1e-5F), centered);
}

/// Y = z * scale + bias. Returns the gradient of z, null when nothing flows back to Y.
Value* affine_gradient(GradientContext& g, Value* z) {
  if (!g.has_dy(0)) {
    g.set_zero(1);
    g.set_zero(2);
    return nullptr;
  }
  Value* dy = widened(g, g.dy(0));
  g.set_reduced(1, g.cast_like(g.mul(dy, z), g.x(1)));
  if (g.has_input(2)) g.set_reduced(2, g.cast_like(g.dy(0), g.x(2)));
  return g.mul(dy, widened(g, g.x(1)));
}

Value* plus(GradientContext& g, Value* a, Value* c) { return a == nullptr ? c : g.add(a, c); }

void gradient(GradientContext& g, bool centered, std::size_t inverse_output) {
  Standardized s = rows_of(g, centered);
  Value* dz = affine_gradient(g, s.z);
  Value* dx = dz == nullptr ? nullptr : standardize_gradient(g, s, dz);
  if (centered && g.has_dy(1)) dx = plus(g, dx, mean_gradient(g, s, g.dy(1)));
  if (inverse_output > 0 && g.has_dy(inverse_output)) {
    dx = plus(g, dx, inverse_gradient(g, s, g.dy(inverse_output)));
  }
  g.set(0, g.expand_like(g.cast_like(dx, g.x(0)), g.x(0)));
}

/// Shape of the statistics: the rows' own axes have extent 1.
Type statistic_type(GradientContext& g) {
  Shape shape = *g.x(0)->type.shape;
  for (auto i = static_cast<std::size_t>(first_axis(g)); i < shape.size(); ++i) shape[i] = 1;
  return Type::tensor(static_cast<DType>(g.node.attr_int("stash_type", 1)), std::move(shape));
}

/// The dedicated operator takes parameters of one row's shape, and the statistics as they were kept: enough for
/// anything but float64 rows with float32 statistics.
bool fits_operator(GradientContext& g) {
  const Type& x = g.x(0)->type;
  const DType stash = static_cast<DType>(g.node.attr_int("stash_type", 1));
  if (!g.has_dy(0) || !x.shape || (x.dtype == DType::float64 && stash != DType::float64)) return false;
  const Shape row(x.shape->begin() + first_axis(g), x.shape->end());
  for (std::size_t i = 1; i < g.node.inputs.size(); ++i) {
    const Value* parameter = g.node.input(i);
    if (parameter != nullptr && parameter->type.shape != row) return false;
  }
  return true;
}

}  // namespace

void layer_norm_gradient(GradientContext& g) { gradient(g, true, 2); }

void layer_norm_fused_gradient(GradientContext& g) {
  if (!fits_operator(g) || g.has_dy(1) || g.has_dy(2)) return layer_norm_gradient(g);
  Value* mean = forward_output(g, 1, statistic_type(g));
  Value* inverse = forward_output(g, 2, statistic_type(g));
  std::vector<Value*> d = g.b.ops("LayerNormalizationGrad", {g.dy(0), g.x(0), g.x(1), mean, inverse}, 3,
                                  {{"axis", g.node.attr_int("axis", -1)}}, "com.microsoft");
  g.set(0, d[0]);
  g.set(1, d[1]);
  if (g.has_input(2)) g.set(2, d[2]);
}

void rms_norm_gradient(GradientContext& g) { gradient(g, false, g.node.op == "RMSNormalization" ? 0 : 1); }

void rms_norm_fused_gradient(GradientContext& g) {
  if (!fits_operator(g) || g.has_dy(1)) return rms_norm_gradient(g);
  if (g.node.op == "RMSNormalization") {
    Node& node = forward_node(g);
    node.op = "SimplifiedLayerNormalization";  // the same, with one more output
    node.def = find_op("", node.op);
  }
  Value* inverse = forward_output(g, 1, statistic_type(g));
  std::vector<Value*> d = g.b.ops("SimplifiedLayerNormalizationGrad", {g.dy(0), g.x(0), g.x(1), inverse}, 2,
                                  {{"axis", g.node.attr_int("axis", -1)}}, "com.microsoft");
  g.set(0, d[0]);
  g.set(1, d[1]);
}

}  // namespace backpass
