// BlockedConv: Conv on blocked values, with bias, residual and activation on the way.
//
//   inputs       X [N, C/b, H, W, b], or [N, C, H, W] with C < b; W [M, C/group, kh, kw], M a multiple of b; bias [M];
//                residual like the output. With one group, C may leave a rest of the last block: it is not read.
//   output       activation(X * W + bias + residual), [N, M/b, H', W', b]
//   attributes   those of Conv, block, those of ops/activations/fused_activation.hpp, and winograd: 1 where that
//                method may be used
#include <algorithm>
#include <cstring>
#include <memory>

#include "graph/op.hpp"
#include "ops/activations/fused_activation.hpp"
#include "ops/convolution/blocked_conv_kernel.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/convolution/dnnl_conv.hpp"
#include "ops/flops.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kBias, kResidual };

bool is_blocked(std::size_t rank) { return rank == 5; }

/// [N, C, H, W] of a blocked input: weights know how many channels there are.
Shape plain_shape(InferContext& c, const Shape& x, const Shape& w, std::int64_t b) {
  c.require(w.size() == 4 && w[1].is_known(), "weights are ", shown(w), ": expected four axes");
  const std::int64_t channels = w[1].value() * c.node.attr_int("group", 1);
  c.require(x[1].is((channels + b - 1) / b), "input is ", shown(x), ": expected blocks for ", channels, " channels");
  return {x[0], channels, x[2], x[3]};
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kX));
  std::int64_t b = c.node.attr_int("block");
  check_activation(c);
  Shape x = c.shape(kX);
  c.require(x.size() == 4 || (is_blocked(x.size()) && x[4].is(b)), "input is ", shown(x),
            ": expected [N, C/b, H, W, b] or [N, C, H, W] with b = ", b);
  const Shape& w = c.shape(kW);
  if (is_blocked(x.size())) x = plain_shape(c, x, w, b);
  c.require(!w.empty() && w[0].is_known() && w[0].value() % b == 0, "weights are ", shown(w),
            ": expected a multiple of ", b, " output channels");
  check_conv_bias(c, kBias, w[0]);
  Shape y = conv_shape(c, x, w);
  Shape blocked{y[0], w[0].value() / b, y[2], y[3], b};
  if (c.has_input(kResidual)) {
    const Shape& residual = c.shape(kResidual);
    c.require(residual.size() == 5, "residual is ", shown(residual), ": expected the shape of the output");
    for (std::size_t i = 0; i < 5; ++i) blocked[i] = c.unify(blocked[i], residual[i], "extents of residual and output");
  }
  c.set_shape(0, std::move(blocked));
}

Kernel own_kernel(PrepareContext& c, const ConvGeometry& g, bool blocked_in) {
  if (c.in(kW).constant == nullptr) return {};
  BlockedConvOptions options{c.out(0).dims[4], blocked_in, activation_of(c.node), c.node.attr_int("winograd", 0) != 0};
  std::shared_ptr<const BlockedConv> conv = BlockedConv::make(g, options, *c.in(kW).constant);
  if (conv == nullptr) return {};
  std::size_t at = c.reserve(conv->scratch_bytes());
  bool has_bias = c.has_input(kBias);
  bool has_residual = c.has_input(kResidual);
  return [=](const KernelArgs& args) {
    conv->run(args.in<float>(kX), has_bias ? args.in<float>(kBias) : nullptr,
              has_residual ? args.in<float>(kResidual) : nullptr, args.out<float>(0), args.scratch + at);
  };
}

/// What our own loops do not cover.
Kernel library_kernel(PrepareContext& c, const ConvGeometry& g, bool blocked_in) {
  DnnlConvOptions options;
  options.blocked_in = blocked_in;
  options.blocked_out = true;
  options.has_bias = c.has_input(kBias);
  options.has_sum = c.has_input(kResidual);
  // Applied afterwards: the library's own turns NaN into 0.
  TileCall activate = activation_of(c.node).bind(DType::float32);
  std::int64_t count = c.out(0).size();
  options.constant_weights = c.in(kW).constant;
  std::shared_ptr<DnnlConv> conv = DnnlConv::make(g, options);
  ensure(conv != nullptr, shown(c.node), " oneDNN has no blocked convolution of this kind");
  std::size_t at = c.reserve(conv->scratch_bytes());
  std::size_t bytes = byte_size(DType::float32, c.out(0).size());
  return [=, has_bias = options.has_bias, has_sum = options.has_sum](const KernelArgs& args) {
    // The sum is taken with what the output holds; the planner lets both share memory where it can.
    if (has_sum && args.inputs[kResidual] != args.outputs[0]) {
      std::memcpy(args.outputs[0], args.inputs[kResidual], bytes);
    }
    conv->run(args.in<float>(kX), args.in<float>(kW), has_bias ? args.in<float>(kBias) : nullptr, args.out<float>(0),
              args.scratch + at);
    if (!activate) return;
    parallel_for(count, 1 << 14,
                 [&](std::int64_t begin, std::int64_t end) { activate(args.out<float>(0) + begin, end - begin); });
  };
}

Kernel prepare(PrepareContext& c) {
  if (c.out(0).size() == 0) return [](const KernelArgs&) {};
  Dims x = c.in(kX).dims;
  bool blocked_in = is_blocked(x.size());
  if (blocked_in) x = {x[0], x[1] * x[4], x[2], x[3]};
  const Dims& y = c.out(0).dims;
  ConvGeometry g = conv_geometry(c.node, x, c.in(kW).dims, {y[0], y[1] * y[4], y[2], y[3]});
  Kernel kernel = own_kernel(c, g, blocked_in);
  return kernel ? kernel : library_kernel(c, g, blocked_in);
}

const Register blocked_conv{
    {.name = "BlockedConv",
     .domain = "backpass",
     .since = 1,
     .doc = "Conv on blocked values with bias, residual and activation",
     .inputs = {2, 4},
     .types = DTypeSet{DType::float32},
     .infer = infer,
     .prepare = prepare,
     .in_place_input = kResidual,
     .is_lowered = true,
     .flops = [](const Node& node) { return flops::sums(node, flops::per_channel(node.inputs.at(kW))); }}};

}  // namespace
}  // namespace backpass
