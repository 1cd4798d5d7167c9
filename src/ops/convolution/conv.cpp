// Conv: convolution over any number of spatial axes. float32 with up to three of them runs in oneDNN, the rest as a
// matrix product over gathered columns.
#include "kernels/conv.hpp"

#include <memory>

#include "graph/op.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/convolution/conv_rule.hpp"
#include "ops/convolution/dnnl_conv.hpp"
#include "ops/convolution/wide_copy.hpp"
#include "ops/convolution/winograd.hpp"
#include "ops/flops.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "input and weights have different element types: got ", name_of(c.dtype(0)),
            " and ", name_of(c.dtype(1)));
  c.set_dtype(0, c.dtype(0));
  check_conv_bias(c, 2, c.shape(1).empty() ? Dim(0) : c.shape(1)[0]);
  c.set_shape(0, conv_shape(c, c.shape(0), c.shape(1)));
}

std::shared_ptr<DnnlConv> library_conv(PrepareContext& c, const ConvGeometry& g) {
  if (c.in(0).dtype != DType::float32 || c.in(0).size() == 0 || c.in(1).size() == 0) return nullptr;
  DnnlConvOptions options;
  options.has_bias = c.has_input(2);
  const Tensor* weights = c.in(1).constant;
  if (weights != nullptr && weights->dtype() == DType::float32) options.constant_weights = weights;
  return DnnlConv::make(g, options);
}

Kernel winograd_kernel(PrepareContext& c, const ConvGeometry& g) {
  const auto results = c.node.attr_int("winograd", 0) != 0 ? winograd_results(g) : std::nullopt;
  if (!results || c.in(0).dtype != DType::float32) return {};
  const WinogradConv conv(g, WinogradConv::Kind::forward, *results);
  const std::size_t at = c.reserve(conv.scratch_bytes());
  return [conv, at, has_bias = c.has_input(2)](const KernelArgs& args) {
    conv.run(args.in<float>(0), args.in<float>(1), has_bias ? args.in<float>(2) : nullptr, args.out<float>(0),
             args.scratch + at);
  };
}

/// Images stay bfloat16; weights, of which there are fewer, are widened.
Kernel prepare_half(PrepareContext& c) {
  if (c.in(0).dtype != DType::bfloat16 || c.out(0).size() == 0) return {};
  const ConvGeometry g = conv_geometry(c.node, c.in(0).dims, c.in(1).dims, c.out(0).dims);
  const auto results = c.node.attr_int("winograd", 0) != 0 ? winograd_results(g) : std::nullopt;
  if (!results) return {};
  const WinogradConv conv(g, WinogradConv::Kind::forward, *results, /*is_narrow=*/true);
  const std::size_t at = c.reserve(conv.scratch_bytes());
  const WideCopy weights(c, c.in(1).size());
  const WideCopy bias(c, c.has_input(2) ? c.in(2).size() : 0);
  return [=, has_bias = c.has_input(2)](const KernelArgs& args) {
    const float* w = weights.widen(args.in<void>(1), args.scratch);
    const float* b = has_bias ? bias.widen(args.in<void>(2), args.scratch) : nullptr;
    conv.run(args.in<void>(0), w, b, args.out<void>(0), args.scratch + at);
  };
}

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = conv_geometry(c.node, c.in(0).dims, c.in(1).dims, c.out(0).dims);
  bool has_bias = c.has_input(2);
  if (c.out(0).size() == 0) return [](const KernelArgs&) {};
  if (auto kernel = winograd_kernel(c, g)) return kernel;
  if (auto conv = library_conv(c, g)) {
    std::size_t at = c.reserve(conv->scratch_bytes());
    return [conv, at, has_bias](const KernelArgs& args) {
      conv->run(args.in<float>(0), args.in<float>(1), has_bias ? args.in<float>(2) : nullptr, args.out<float>(0),
                args.scratch + at);
    };
  }
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [g, has_bias](const KernelArgs& args) {
      convolve<T>(g, args.in<T>(0), args.in<T>(1), has_bias ? args.in<T>(2) : nullptr, args.out<T>(0));
    };
  });
  return kernel;
}

const Register conv{
    {.name = "Conv",
     .since = 22,
     .doc = "convolution over any number of spatial axes, with groups, strides, dilations and padding",
     .inputs = {2, 3},
     .types = types::floats,
     .infer = infer,
     .prepare = prepare,
     .gradient = conv_gradient,
     .fused_gradient = conv_fused_gradient,
     .half_through_float = true,
     .prepare_half = prepare_half,
     .flops = [](const Node& node) { return flops::sums(node, flops::per_channel(node.inputs.at(1))); }}};

}  // namespace
}  // namespace backpass
