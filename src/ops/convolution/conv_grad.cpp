// com.microsoft ConvGrad: gradients of Conv with respect to input, weights and bias, each optional.
#include <algorithm>

#include "graph/op.hpp"
#include "kernels/conv.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/convolution/dnnl_conv_grad.hpp"
#include "ops/convolution/wide_copy.hpp"
#include "ops/convolution/winograd.hpp"
#include "ops/flops.hpp"
#include "support/half.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kDy, kX, kW };

void infer(InferContext& c) {
  const Shape& w = c.shape(kW);
  c.require(!w.empty(), "weights are a scalar: expected [channels, ...]");
  infer_conv_gradient(c, w[0]);
  Shape y = conv_shape(c, c.shape(kX), w);
  for (std::size_t i = 2; i < y.size(); ++i) c.unify(y[i], c.shape(kDy)[i], "extents of dY and of the convolution");
}

struct Wanted {
  bool dx, dw, db;
};

/// The float32 kernel: each gradient by oneDNN where it is faster. With few input channels, as first layers have them,
/// the matrix product is (measured: dX of 3 channels in 0.5, dW of one channel in 0.3 of the time).
Kernel library_kernel(PrepareContext& c, const ConvGeometry& g, Wanted wanted) {
  const bool few = g.groups == 1 && g.in_channels < 8;
  auto data = wanted.dx && !few ? DnnlConvBackwardData::make(g) : nullptr;
  auto weights = wanted.dw && !(few && g.in_channels < 3) ? DnnlConvBackwardWeights::make(g, wanted.db) : nullptr;
  const std::size_t at = c.reserve(std::max(data != nullptr ? data->scratch_bytes() : 0,  // one after the other
                                            weights != nullptr ? weights->scratch_bytes() : 0));
  return [=](const KernelArgs& args) {
    const auto* dy = args.in<float>(kDy);
    const auto* x = args.in<float>(kX);
    const auto* w = args.in<float>(kW);
    if (data != nullptr) {
      data->run(dy, w, args.out<float>(0), args.scratch + at);
    } else if (wanted.dx) {
      convolve_backward_data<float>(g, dy, w, nullptr, args.out<float>(0));
    }
    if (weights != nullptr) {
      weights->run(x, dy, args.out<float>(1), wanted.db ? args.out<float>(2) : nullptr, args.scratch + at);
      return;
    }
    if (wanted.dw) convolve_backward_weights<float>(g, x, dy, args.out<float>(1));
    if (wanted.db) sum_channels<float>(g.batch, g.groups * g.out_channels, g.out_size(), dy, args.out<float>(2));
  };
}

/// Null where direct sums are as fast.
Kernel winograd_kernel(PrepareContext& c, const ConvGeometry& g, Wanted wanted) {
  const auto results = c.node.attr_int("winograd", 0) != 0 ? winograd_results(g) : std::nullopt;
  if (!results) return {};
  const WinogradConv data(g, WinogradConv::Kind::backward_data, *results);
  const WinogradWeights weights(g, *results);
  const std::size_t at = c.reserve(std::max(wanted.dx ? data.scratch_bytes() : 0,  // one after the other
                                            wanted.dw ? weights.scratch_bytes() : 0));
  return [=](const KernelArgs& args) {
    const auto* dy = args.in<float>(kDy);
    if (wanted.dx) data.run(dy, args.in<float>(kW), nullptr, args.out<float>(0), args.scratch + at);
    if (wanted.dw) weights.run(args.in<float>(kX), dy, args.out<float>(1), args.scratch + at);
    if (wanted.db) sum_channels<float>(g.batch, g.out_channels, g.out_size(), dy, args.out<float>(2));
  };
}

/// Images stay bfloat16; weights and their gradients, of which there are fewer, are converted.
Kernel prepare_half(PrepareContext& c) {
  if (c.in(kDy).dtype != DType::bfloat16) return {};
  const ConvGeometry g = conv_geometry(c.node, c.in(kX).dims, c.in(kW).dims, c.in(kDy).dims);
  const auto results = c.node.attr_int("winograd", 0) != 0 ? winograd_results(g) : std::nullopt;
  if (!results) return {};
  const Wanted wanted{c.has_output(0), c.has_output(1), c.has_output(2)};
  const WinogradConv data(g, WinogradConv::Kind::backward_data, *results, /*is_narrow=*/true);
  const WinogradWeights weights(g, *results, /*is_narrow=*/true);
  const std::size_t at = c.reserve(std::max(wanted.dx ? data.scratch_bytes() : 0,  // one after the other
                                            wanted.dw ? weights.scratch_bytes() : 0));
  const WideCopy w(c, wanted.dx ? c.in(kW).size() : 0);
  const WideCopy dw(c, wanted.dw ? c.in(kW).size() : 0);
  return [=](const KernelArgs& args) {
    const void* dy = args.in<void>(kDy);
    if (wanted.dx) {
      data.run(dy, w.widen(args.in<void>(kW), args.scratch), nullptr, args.out<void>(0), args.scratch + at);
    }
    if (wanted.dw) {
      weights.run(args.in<void>(kX), dy, dw.at(args.scratch), args.scratch + at);
      dw.narrow(args.scratch, args.out<void>(1));
    }
    if (wanted.db) {
      sum_channels(g.batch, g.out_channels, g.out_size(), args.in<BFloat16>(kDy), args.out<BFloat16>(2));
    }
  };
}

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = conv_geometry(c.node, c.in(kX).dims, c.in(kW).dims, c.in(kDy).dims);
  Wanted wanted{c.has_output(0), c.has_output(1), c.has_output(2)};
  if (c.in(kDy).dtype == DType::float32) {
    if (auto kernel = winograd_kernel(c, g, wanted)) return kernel;
    return library_kernel(c, g, wanted);
  }
  return [=](const KernelArgs& args) {
    const auto* dy = args.in<double>(kDy);
    if (wanted.dx) convolve_backward_data<double>(g, dy, args.in<double>(kW), nullptr, args.out<double>(0));
    if (wanted.dw) convolve_backward_weights<double>(g, args.in<double>(kX), dy, args.out<double>(1));
    if (wanted.db) sum_channels<double>(g.batch, g.groups * g.out_channels, g.out_size(), dy, args.out<double>(2));
  };
}

Dim count_flops(const Node& node) {
  const Dim forward = Dim(2) * flops::elements(node.inputs.at(kDy)) * flops::per_channel(node.inputs.at(kW));
  return flops::convolution_gradient(node, forward);
}

const Register conv_grad{{.name = "ConvGrad",
                          .domain = "com.microsoft",
                          .since = 1,
                          .doc = "gradients of Conv with respect to input, weights and bias",
                          .inputs = {3, 3},
                          .outputs = {1, 3},
                          .types = types::floats,
                          .infer = infer,
                          .prepare = prepare,
                          .half_through_float = true,
                          .prepare_half = prepare_half,
                          .flops = count_flops}};

}  // namespace
}  // namespace backpass
