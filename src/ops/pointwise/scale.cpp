// com.microsoft Scale, BatchScale, ScaledSum, MixedPrecisionScale, DivGrad.
#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

// ---- Scale

void infer_scale(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(types::numbers.has(c.dtype(1)), "element type of the scale: got ", name_of(c.dtype(1)),
            ", expected a number");
  if (c.knows_shape(1)) {
    Dim count = product(c.shape(1));
    c.require(!count.is_known() || count.is(1), "scale: got shape ", shown(c.shape(1)), ", expected a scalar");
  }
  c.set_shape(0, c.shape(0));
}

TileRegister emit_scale(TileEmit& e) {
  TileRegister scale = e.builder.convert(e.inputs[1], e.builder.type(e.inputs[0]));
  bool down = e.node.attr_int("scale_down", 0) != 0;
  return e.builder.apply(down ? tile_div() : tile_mul(), {e.inputs[0], scale});
}

/// One number per tensor: its gradient is the sum over everything.
void set_scale(GradientContext& g, Value* gradient) {
  if (!g.wants(1)) return;
  Value* total = g.op("ReduceSum", {gradient}, {{"keepdims", std::int64_t{0}}});
  g.set(1, g.reshape_like(g.cast_like(total, g.x(1)), g.x(1)));
}

void scale_gradient(GradientContext& g) {
  Value* scale = g.cast_like(g.reshape(g.x(1), {}), g.dy());
  if (g.node.attr_int("scale_down", 0) == 0) {
    g.set(0, g.mul(g.dy(), scale));
    return set_scale(g, g.mul(g.dy(), g.x(0)));
  }
  g.set(0, g.div(g.dy(), scale));
  set_scale(g, g.neg(g.div(g.mul(g.dy(), g.y()), scale)));
}

const RegisterPointwise scale_op{{.name = "Scale",
                                  .domain = "com.microsoft",
                                  .since = 1,
                                  .doc = "X times a scalar, or divided by it (scale_down).",
                                  .inputs = {2, 2},
                                  .types = types::floats,
                                  .infer = infer_scale,
                                  .gradient = scale_gradient},
                                 {.emit = emit_scale}};

// ---- BatchScale: X times scale0, scale1 and, where it is asked for, scale2

void infer_batch_scale(InferContext& c) {
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, c.dtype(0));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_shape(k, c.shape(0));
}

std::vector<Value*> expand_batch_scale(Builder& b, const Node& node) {
  std::vector<Value*> results;
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    const std::string name = concat("scale", k);
    if (!node.has_attribute(name)) fail(node.label(), " attribute ", name, ": got none, expected a number");
    results.push_back(b.op("Mul", {node.input(0), b.scalar(node.attr_float(name, 1), node.input(0))}));
  }
  return results;
}

const Register batch_scale{{.name = "BatchScale",
                            .domain = "com.microsoft",
                            .doc = "X times two or three numbers, one output for each.",
                            .outputs = {2, 3},
                            .types = types::floats,
                            .infer = infer_batch_scale,
                            .expand = expand_batch_scale}};

// ---- ScaledSum

float scale_at(const Node& node, std::size_t i) { return node.attr_float(concat("scale_", i), 1.0F); }

TileRegister emit_scaled_sum(TileEmit& e) {
  TileRegister total = kNoRegister;
  for (std::size_t i = 0; i < e.inputs.size(); ++i) {
    if (!e.has(i)) continue;
    float scale = scale_at(e.node, i);
    TileRegister term =
        e.builder.apply(tile_mul(), {e.inputs[i], e.builder.immediate(scale, e.builder.type(e.inputs[i]))});
    total = total == kNoRegister ? term : e.builder.apply(tile_add(), {total, term});
  }
  return total;
}

void scaled_sum_gradient(GradientContext& g) {
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) {
    if (g.has_input(i)) g.set_reduced(i, g.mul(g.dy(), g.number(scale_at(g.node, i))));
  }
}

const RegisterPointwise scaled_sum_op{{.name = "ScaledSum",
                                       .domain = "com.microsoft",
                                       .since = 1,
                                       .doc = "Sum of two or three inputs, each times its scale_i.",
                                       .inputs = {2, 3},
                                       .types = types::floats,
                                       .gradient = scaled_sum_gradient},
                                      {.emit = emit_scaled_sum}};

// ---- MixedPrecisionScale

/// MixedPrecisionScale(scale, x...) -> (x * scale cast to `to`)...
void infer_mixed_precision_scale(InferContext& c) {
  std::int64_t code = c.node.attr_int("to");
  c.require(is_known_dtype(code) && is_float(static_cast<DType>(code)), "to: got ", code, ", expected a float type");
  c.require(c.node.attr_int("fuse_outputs", 0) == 0, "fuse_outputs=1 is not supported; use one output per input");
  c.require(c.outputs.size() + 1 == c.input_count(), "got ", c.outputs.size(), " outputs for ", c.input_count() - 1,
            " tensors, expected one each");
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, static_cast<DType>(code));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) {
    if (c.knows_shape(k + 1)) c.set_shape(k, c.shape(k + 1));
  }
}

std::vector<Value*> expand_mixed_precision_scale(Builder& b, const Node& node) {
  auto as = [&](Value* x, DType dtype) { return b.op("Cast", {x}, {{"to", static_cast<std::int64_t>(dtype)}}); };
  Value* scale = as(node.input(0), DType::float32);
  std::vector<Value*> out;
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    Value* product = b.op("Mul", {as(node.inputs[i], DType::float32), scale});
    out.push_back(as(product, static_cast<DType>(node.attr_int("to"))));
  }
  return out;
}

const Register mixed_precision_scale_op({.name = "MixedPrecisionScale",
                                         .domain = "com.microsoft",
                                         .doc = "tensors multiplied by one scale and cast",
                                         .inputs = {2, -1},
                                         .outputs = {1, -1},
                                         .types = types::floats,
                                         .infer = infer_mixed_precision_scale,
                                         .expand = expand_mixed_precision_scale});

// ---- DivGrad

void infer_div_grad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, c.dtype(0));
  c.set_shape(0, c.shape(1));
  c.set_shape(1, c.shape(2));
}

// Sums over what `target` was broadcast along.
Value* reduced_like(Builder& b, Value* value, Value* target) {
  if (value->type.shape && target->type.shape && *value->type.shape == *target->type.shape) return value;
  Value* shape = b.op("Shape", {target});
  std::vector<Value*> axes = b.ops("BroadcastGradientArgs", {shape, b.op("Shape", {value})}, 2, {}, "com.microsoft");
  Value* sum =
      b.op("ReduceSum", {value, axes[0]}, {{"keepdims", std::int64_t{1}}, {"noop_with_empty_axes", std::int64_t{1}}});
  return b.op("Reshape", {sum, shape});
}

std::vector<Value*> expand_div_grad(Builder& b, const Node& node) {
  Value* dy = node.inputs[0];
  Value* x = node.inputs[1];
  Value* y = node.inputs[2];
  Value* dx = b.op("Div", {dy, y});
  std::vector<Value*> results(2, nullptr);
  if (node.output(0) != nullptr) results[0] = reduced_like(b, dx, x);
  if (node.output(1) != nullptr) results[1] = reduced_like(b, b.op("Neg", {b.op("Mul", {dx, b.op("Div", {x, y})})}), y);
  return results;
}

const Register div_grad_op{{.name = "DivGrad",
                            .domain = "com.microsoft",
                            .since = 1,
                            .doc = "Gradients of A / B with respect to both, from dY, A and B.",
                            .inputs = {3, 3},
                            .outputs = {1, 2},
                            .types = types::floats,
                            .infer = infer_div_grad,
                            .expand = expand_div_grad}};

}  // namespace
}  // namespace backpass
