// DequantizeLinear: a short integer or float format back to floats by scale and zero point.
#include "ops/quantization.hpp"

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

constexpr OpDef kDef{.name = "DequantizeLinear",
                     .since = 28,
                     .doc = "(x - zero point) * scale; scales per tensor, axis or block.",
                     .inputs = {2, 3},
                     .types = types::quantized | DTypeSet{DType::int32},
                     .infer = infer,
                     .prepare = prepare};

constexpr OpDef microsoft(OpDef def) {
  def.domain = "com.microsoft";
  def.since = 1;
  return def;
}

const Register dequantize_linear{kDef};
const Register microsoft_dequantize_linear{microsoft(kDef)};

}  // namespace
}  // namespace backpass
