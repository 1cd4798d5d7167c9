// DynamicQuantizeLinear: float32 to uint8, with scale and zero point from the range of the data.
#include <algorithm>
#include <cmath>

#include "gradient/composite.hpp"
#include "graph/op.hpp"
#include "ops/quantization/quantize.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, DType::uint8);
  if (c.has_output(1)) c.set(1, DType::float32, {});
  if (c.has_output(2)) c.set(2, DType::uint8, {});
  c.set_shape(0, c.shape(0));
}

Kernel prepare(PrepareContext& c) {
  const std::int64_t n = c.in(0).size();
  return [=](const KernelArgs& args) {
    const auto* x = args.in<float>(0);
    const QuantizedRange range = range_with_zero(x, n);
    const float scale = range.low == range.high ? 1.0F : (range.high - range.low) / 255.0F;
    const float zero = std::min(std::max(std::nearbyint(0.0F - range.low / scale), 0.0F), 255.0F);
    const auto zero_point = static_cast<std::uint8_t>(zero);
    quantize_uint8(x, scale, zero_point, args.out<std::uint8_t>(0), n);
    if (args.outputs[1] != nullptr) *args.out<float>(1) = scale;
    if (args.outputs[2] != nullptr) *args.out<std::uint8_t>(2) = zero_point;
  };
}

/// The scale: the only output that holds floats.
std::vector<Value*> write_scale(Builder& b, const Node& node) {
  Value* x = node.inputs[0];
  auto number = [&](double v) { return b.scalar(v, x); };
  const AttributeList to_scalar{{"keepdims", std::int64_t{0}}};
  Value* high = b.op("Max", {b.op("ReduceMax", {x}, to_scalar), number(0)});
  Value* low = b.op("Min", {b.op("ReduceMin", {x}, to_scalar), number(0)});
  Value* range = b.op("Sub", {high, low});
  Value* scale = b.op("Div", {range, number(255)});
  return {nullptr, b.op("Where", {b.op("Equal", {range, number(0)}), number(1), scale}), nullptr};
}

void gradient(GradientContext& g) { composite_gradient(g, write_scale); }

const Register dynamic_quantize_linear{
    {.name = "DynamicQuantizeLinear",
     .since = 11,
     .doc = "Quantizes to uint8 by the range of the data; also gives scale and zero point.",
     .outputs = {3, 3},
     .types = {DType::float32},
     .infer = infer,
     .prepare = prepare,
     .gradient = gradient}};

}  // namespace
}  // namespace backpass
