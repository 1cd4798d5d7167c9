// DequantizeLinear: a short integer or float format back to floats by scale and zero point.
#include <algorithm>

#include "gradient/rule.hpp"
#include "ops/quantization/quantization.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  const DType to = dtype_attribute(c, "output_dtype", types::short_floats, c.dtype(1));
  c.require(types::short_floats.has(to), "scale of type ", name_of(c.dtype(1)),
            ": the output cannot have that type; give output_dtype, one of ", shown(types::short_floats));
  c.set_dtype(0, to);
  constexpr DTypeSet scales = types::short_floats | DTypeSet{DType::float8e8m0};
  c.require(scales.has(c.dtype(1)), "scale of type ", name_of(c.dtype(1)), ": expected one of ", shown(scales));
  c.require(!c.has_input(2) || c.dtype(2) == c.dtype(0), "zero point: expected the type of the input, ",
            name_of(c.dtype(0)));
  check_quantization(c);
  c.set_shape(0, c.shape(0));
}

Kernel prepare(PrepareContext& c) {
  const QuantizeSpec spec = quantize_spec(c);
  const std::size_t scratch = c.reserve(quantize_scratch_bytes(spec));
  return [=](const KernelArgs& args) {
    const void* zero_point = spec.has_zero_point ? args.inputs[2] : nullptr;
    dequantize(spec, args.inputs[0], args.inputs[1], zero_point, args.outputs[0], args.scratch + scratch);
  };
}

/// What a scale was repeated over, summed. `a` has the shape of x.
Value* sum_per_scale(GradientContext& g, Value* a) {
  Value* scale = g.x(1);
  const std::int64_t rank = g.rank(a);
  std::vector<std::int64_t> others;
  std::int64_t axis = rank == 1 ? 0 : g.node.attr_int("axis", 1);
  axis = axis < 0 ? axis + rank : axis;
  const Shape& shape = *scale->type.shape;
  const bool is_one = std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.is(1); });
  for (std::int64_t i = 0; i < rank; ++i) {
    if (i != axis || is_one) others.push_back(i);
  }
  const std::int64_t block = g.node.attr_int("block_size", 0);
  if (block > 0 && !is_one) {  // the last block may be short
    Value* from = g.shape_of(scale);
    auto at = [&](std::int64_t begin, std::int64_t end) { return g.slice(from, begin, end, 0); };
    Value* missing = g.sub(g.mul(at(axis, axis + 1), g.b.ints({block})), g.reshape(g.extent(a, axis), {1}));
    Value* padded = g.op("Pad", {a, g.concat({g.b.ints({0}), missing}, 0), nullptr, g.b.ints({axis})});
    Value* split = g.concat({at(0, axis + 1), g.b.ints({block}), at(axis + 1, rank)}, 0);
    return g.sum(g.reshape_to(padded, split), {axis + 1}, false);
  }
  Value* sums = g.sum(a, others, false);
  return is_one ? sums : g.reduce_like(sums, scale);  // one scale for the whole tensor, if run time says so
}

/// The scale's: what it is multiplied with. Integers have none.
void gradient(GradientContext& g) {
  if (!g.wants(1)) return;
  Value* scale = g.x(1);
  g.rank(scale);
  std::vector<Value*> inputs{g.x(0), g.expand_like(g.one(scale), scale)};
  if (g.has_input(2)) inputs.push_back(g.x(2));
  Value* steps = g.op("DequantizeLinear", inputs, {g.node.attributes.begin(), g.node.attributes.end()}, g.node.domain);
  g.set(1, g.reshape_like(g.cast_like(sum_per_scale(g, g.mul(g.dy(), steps)), scale), scale));
}

constexpr OpDef kDef{.name = "DequantizeLinear",
                     .since = 28,
                     .doc = "(x - zero point) * scale; scales per tensor, axis or block.",
                     .inputs = {2, 3},
                     .types = types::quantized | DTypeSet{DType::int32},
                     .infer = infer,
                     .prepare = prepare,
                     .gradient = gradient};

constexpr OpDef microsoft(OpDef def) {
  def.domain = "com.microsoft";
  def.since = 1;
  return def;
}

const Register dequantize_linear{kDef};
const Register microsoft_dequantize_linear{microsoft(kDef)};

}  // namespace
}  // namespace backpass
