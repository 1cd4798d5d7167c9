// Block and Unblock: between [N, C, H, W] and [N, C/b, H, W, b]. Made by plan/block_convolutions, as are the other
// operators on blocked values. A blocked value is an ordinary tensor of five axes, so that pointwise operators work on
// it unchanged. Channels may leave a rest of the last block, which holds anything: nobody reads it but operators that
// keep channels apart.
#include "graph/op.hpp"
#include "kernels/blocked.hpp"
#include "ops/blocked_channels.hpp"

namespace backpass {
namespace {

std::int64_t block_of(const Node& node) {
  std::int64_t b = node.attr_int("block");
  if (b < 8 || b > 64 || b % 8 != 0) fail(node.label(), " attribute block is ", b, ": expected 8, 16, ... 64");
  return b;
}

void infer_block(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  std::int64_t b = block_of(c.node);
  const Shape& x = c.shape(0);
  c.require(x.size() == 4 && x[1].is_known(), "input is ", shown(x),
            ": expected four axes and a known number of channels");
  c.set_shape(0, {x[0], (x[1].value() + b - 1) / b, x[2], x[3], b});
}

Kernel prepare_block(PrepareContext& c) {
  const Dims& x = c.in(0).dims;
  return [images = x[0], channels = x[1], b = c.out(0).dims[4], size = x[2] * x[3]](const KernelArgs& args) {
    to_blocked(images, channels, b, size, args.in<float>(0), args.out<float>(0));
  };
}

void infer_unblock(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& x = c.shape(0);
  c.require(x.size() == 5 && x[4].is_known(), "input is ", shown(x), ": expected [N, C/b, H, W, b]");
  c.set_shape(0, {x[0], blocked_channels(c, x), x[2], x[3]});
}

Kernel prepare_unblock(PrepareContext& c) {
  const Dims& y = c.out(0).dims;
  return [images = y[0], channels = y[1], b = c.in(0).dims[4], size = y[2] * y[3]](const KernelArgs& args) {
    from_blocked(images, channels, b, size, args.in<float>(0), args.out<float>(0));
  };
}

constexpr DTypeSet kTypes{DType::float32};

const Register block{{.name = "Block",
                      .domain = "backpass",
                      .since = 1,
                      .doc = "[N, C, H, W] to [N, C/b, H, W, b]",
                      .types = kTypes,
                      .infer = infer_block,
                      .prepare = prepare_block,
                      .is_lowered = true}};

const Register unblock{{.name = "Unblock",
                        .domain = "backpass",
                        .since = 1,
                        .doc = "[N, C/b, H, W, b] to [N, C, H, W]",
                        .types = kTypes,
                        .infer = infer_unblock,
                        .prepare = prepare_unblock,
                        .is_lowered = true}};

}  // namespace
}  // namespace backpass
