// QLinearConv: convolution of quantized tensors into a quantized tensor.
#include "graph/op.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/quantization/quantized.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kBytes{DType::int8, DType::uint8};
enum Input : std::size_t { kX, kXScale, kXZero, kW, kWScale, kWZero, kYScale, kYZero, kBias };

void check_parameter(InferContext& c, std::size_t input, DType dtype, const Dim* channels) {
  c.require(c.dtype(input) == dtype, "input ", input, " has element type ", name_of(c.dtype(input)), ": expected ",
            name_of(dtype));
  if (!c.knows_shape(input)) return;
  const Shape& shape = c.shape(input);
  bool one = shape.empty() || (shape.size() == 1 && shape[0].is(1));
  c.require(one || (channels != nullptr && shape.size() == 1), "input ", input, " is ", shown(shape),
            ": expected one number", channels != nullptr ? " or one per output channel" : "");
  // An extent that is not known yet may turn out to be 1.
  if (!one && shape[0].is_known()) c.unify(shape[0], *channels, "quantization parameters against output channels");
}

void infer(InferContext& c) {
  c.require(kBytes.has(c.dtype(kW)), "weights have element type ", name_of(c.dtype(kW)), ": expected ", shown(kBytes));
  c.require(kBytes.has(c.dtype(kYZero)), "output zero point has element type ", name_of(c.dtype(kYZero)), ": expected ",
            shown(kBytes));
  c.set_dtype(0, c.dtype(kYZero));
  const Shape& w = c.shape(kW);
  c.require(!w.empty(), "weights are a scalar: expected [channels, ...]");
  check_parameter(c, kXScale, DType::float32, nullptr);
  check_parameter(c, kXZero, c.dtype(kX), nullptr);
  check_parameter(c, kWScale, DType::float32, &w[0]);
  check_parameter(c, kWZero, c.dtype(kW), &w[0]);
  check_parameter(c, kYScale, DType::float32, nullptr);
  check_parameter(c, kYZero, c.dtype(kYZero), nullptr);
  if (c.has_input(kBias)) {
    c.require(c.dtype(kBias) == DType::int32, "bias has element type ", name_of(c.dtype(kBias)), ": expected int32");
  }
  check_conv_bias(c, kBias, w[0]);
  c.set_shape(0, conv_shape(c, c.shape(kX), w));
}

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = conv_geometry(c.node, c.in(kX).dims, c.in(kW).dims, c.out(0).dims);
  TensorInfo x = c.in(kX);
  TensorInfo w = c.in(kW);
  bool has_bias = c.has_input(kBias);
  bool scale_per_channel = c.in(kWScale).size() > 1;
  Dims x_strides(x.dims.size(), 0);
  Dims w_strides(w.dims.size(), 0);
  if (c.in(kWZero).size() > 1) w_strides[0] = 1;
  std::int64_t channels = w.dims[0];
  Requantize end{c.out(0).dtype, channels, g.out_size(), 1, 0};
  std::size_t x_at = c.reserve(static_cast<std::size_t>(x.size()) * 4);
  std::size_t w_at = c.reserve(static_cast<std::size_t>(w.size()) * 4);
  std::size_t sum_at = c.reserve(static_cast<std::size_t>(c.out(0).size()) * 4);
  std::size_t factor_at = c.reserve(static_cast<std::size_t>(channels) * 4);
  return [=](const KernelArgs& args) {
    auto* x32 = reinterpret_cast<std::uint32_t*>(args.scratch + x_at);
    auto* w32 = reinterpret_cast<std::uint32_t*>(args.scratch + w_at);
    auto* sums = reinterpret_cast<std::uint32_t*>(args.scratch + sum_at);
    auto* factor = reinterpret_cast<float*>(args.scratch + factor_at);
    center(x.dtype, args.inputs[kX], x.dims, args.inputs[kXZero], x_strides, x32);
    center(w.dtype, args.inputs[kW], w.dims, args.inputs[kWZero], w_strides, w32);
    integer_convolve(g, x32, w32, has_bias ? args.in<std::int32_t>(kBias) : nullptr, sums);
    for (std::int64_t i = 0; i < channels; ++i) {
      float w_scale = args.in<float>(kWScale)[scale_per_channel ? i : 0];
      factor[i] = *args.in<float>(kXScale) * w_scale / *args.in<float>(kYScale);
    }
    for (std::int64_t n = 0; n < g.batch; ++n) {
      std::int64_t at = n * channels * g.out_size();
      end.run(reinterpret_cast<std::int32_t*>(sums) + at, factor, args.inputs[kYZero], args.out<std::byte>(0) + at);
    }
  };
}

const Register qlinear_conv{{.name = "QLinearConv",
                             .since = 10,
                             .doc = "convolution of quantized tensors; weights per tensor or per output channel",
                             .inputs = {8, 9},
                             .types = kBytes,
                             .infer = infer,
                             .prepare = prepare}};

}  // namespace
}  // namespace backpass
