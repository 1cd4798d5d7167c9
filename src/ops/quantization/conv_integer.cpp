// ConvInteger: convolution of 8-bit integers into 32 bits.
#include "graph/op.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/quantization/quantized.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kBytes{DType::int8, DType::uint8};

void check_zero_point(InferContext& c, std::size_t input, DType dtype, const Dim* channels) {
  if (!c.has_input(input)) return;
  c.require(c.dtype(input) == dtype, "zero point (input ", input, ") has element type ", name_of(c.dtype(input)),
            ": expected ", name_of(dtype));
  if (!c.knows_shape(input)) return;
  const Shape& shape = c.shape(input);
  bool one = shape.empty() || (shape.size() == 1 && shape[0].is(1));
  c.require(one || (channels != nullptr && shape.size() == 1), "zero point (input ", input, ") is ", shown(shape),
            ": expected one number", channels != nullptr ? " or one per output channel" : "");
  // An extent that is not known yet may turn out to be 1.
  if (!one && shape[0].is_known()) c.unify(shape[0], *channels, "zero points against output channels");
}

void infer(InferContext& c) {
  c.set_dtype(0, DType::int32);
  c.require(kBytes.has(c.dtype(1)), "weights have element type ", name_of(c.dtype(1)), ": expected ", shown(kBytes));
  const Shape& w = c.shape(1);
  c.require(!w.empty(), "weights are a scalar: expected [channels, ...]");
  check_zero_point(c, 2, c.dtype(0), nullptr);
  check_zero_point(c, 3, c.dtype(1), &w[0]);
  c.set_shape(0, conv_shape(c, c.shape(0), w));
}

/// Strides that read a zero point per tensor or per first axis.
Dims per_channel_strides(const TensorInfo& zero, const Dims& dims) {
  Dims strides(dims.size(), 0);
  if (zero.present && zero.size() > 1) strides[0] = 1;
  return strides;
}

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = conv_geometry(c.node, c.in(0).dims, c.in(1).dims, c.out(0).dims);
  TensorInfo x = c.in(0);
  TensorInfo w = c.in(1);
  bool has_x_zero = c.has_input(2);
  bool has_w_zero = c.has_input(3);
  Dims x_strides(x.dims.size(), 0);
  Dims w_strides = per_channel_strides(has_w_zero ? c.in(3) : TensorInfo{}, w.dims);
  std::size_t x_at = c.reserve(static_cast<std::size_t>(x.size()) * 4);
  std::size_t w_at = c.reserve(static_cast<std::size_t>(w.size()) * 4);
  return [=](const KernelArgs& args) {
    auto* x32 = reinterpret_cast<std::uint32_t*>(args.scratch + x_at);
    auto* w32 = reinterpret_cast<std::uint32_t*>(args.scratch + w_at);
    center(x.dtype, args.inputs[0], x.dims, has_x_zero ? args.inputs[2] : nullptr, x_strides, x32);
    center(w.dtype, args.inputs[1], w.dims, has_w_zero ? args.inputs[3] : nullptr, w_strides, w32);
    integer_convolve(g, x32, w32, nullptr, args.out<std::uint32_t>(0));
  };
}

const Register conv_integer{{.name = "ConvInteger",
                             .since = 10,
                             .doc = "convolution of 8-bit integers with zero points, 32-bit result",
                             .inputs = {2, 4},
                             .types = kBytes,
                             .infer = infer,
                             .prepare = prepare}};

}  // namespace
}  // namespace backpass
