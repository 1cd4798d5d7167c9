// QuantizeLinear: floats to a short integer or float format by scale and zero point.
#include "ops/quantization/quantization.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  const DType otherwise = c.has_input(2) ? c.dtype(2) : DType::uint8;
  const DType to = dtype_attribute(c, "output_dtype", types::quantized, otherwise);
  c.require(!c.has_input(2) || c.dtype(2) == to, "zero point of type ", name_of(otherwise), ": expected ", name_of(to));
  c.require(types::quantized.has(to), "zero point of type ", name_of(to), ": expected one of ",
            shown(types::quantized));
  c.set_dtype(0, to);
  constexpr DTypeSet scales = types::short_floats | DTypeSet{DType::int32, DType::float8e8m0};
  c.require(scales.has(c.dtype(1)), "scale of type ", name_of(c.dtype(1)), ": expected one of ", shown(scales));
  dtype_attribute(c, "precision", types::short_floats, DType::float32);
  check_quantization(c);
  c.set_shape(0, c.shape(0));
}

Kernel prepare(PrepareContext& c) {
  QuantizeSpec spec = quantize_spec(c);
  const std::int64_t precision = c.node.attr_int("precision", 0);
  const DType asked = precision != 0 ? static_cast<DType>(precision) : spec.scale;
  spec.precision = types::halves.has(asked) ? asked : DType::float32;
  const std::size_t scratch = c.reserve(quantize_scratch_bytes(spec));
  return [=](const KernelArgs& args) {
    const void* zero_point = spec.has_zero_point ? args.inputs[2] : nullptr;
    quantize(spec, args.inputs[0], args.inputs[1], zero_point, args.outputs[0], args.scratch + scratch);
  };
}

constexpr OpDef kDef{
    .name = "QuantizeLinear",
    .since = 28,
    .doc = "Divides by a scale, rounds, adds a zero point and saturates; scales per tensor, axis or block.",
    .inputs = {2, 3},
    .types = types::short_floats | DTypeSet{DType::int32},
    .infer = infer,
    .prepare = prepare,
    .is_flat = true};

constexpr OpDef microsoft(OpDef def) {
  def.domain = "com.microsoft";
  def.since = 1;
  return def;
}

const Register quantize_linear{kDef};
const Register microsoft_quantize_linear{microsoft(kDef)};

}  // namespace
}  // namespace backpass
