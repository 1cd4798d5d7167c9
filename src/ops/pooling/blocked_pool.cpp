// BlockedMaxPool, BlockedAveragePool, BlockedGlobalAveragePool: pooling of blocked values.
#include <memory>

#include "graph/op.hpp"
#include "kernels/blocked.hpp"
#include "ops/blocked_channels.hpp"
#include "ops/pooling/pool_common.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kTypes{DType::float32};

const Shape& blocked_shape(InferContext& c) {
  const Shape& x = c.shape(0);
  c.require(x.size() == 5 && x[4].is_known() && x[4].value() >= 8 && x[4].value() % 8 == 0, "input is ", shown(x),
            ": expected [N, C/b, H, W, b]");
  return x;
}

void infer_window(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& x = blocked_shape(c);
  Shape y = pool_shape(c, {x[0], x[1], x[2], x[3]});
  y.push_back(x[4]);
  c.set_shape(0, std::move(y));
}

PoolWindows windows_of(PrepareContext& c) {
  Dims x = c.in(0).dims;
  Dims y = c.out(0).dims;
  x.pop_back();
  y.pop_back();
  return PoolWindows(pool_geometry(c.node, x, y));
}

Kernel prepare_max(PrepareContext& c) {
  return [windows = windows_of(c), b = c.in(0).dims[4]](const KernelArgs& args) {
    blocked_max_pool(windows, b, args.in<float>(0), args.out<float>(0));
  };
}

Kernel prepare_average(PrepareContext& c) {
  bool count_padding = c.node.attr_int("count_include_pad", 0) != 0;
  return [windows = windows_of(c), b = c.in(0).dims[4], count_padding](const KernelArgs& args) {
    blocked_average_pool(windows, b, args.in<float>(0), args.out<float>(0), count_padding);
  };
}

/// To [N, C, 1, 1], which is the same blocked or not; without the two last axes when keepdims is 0.
void infer_global(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& x = blocked_shape(c);
  Shape y{x[0], blocked_channels(c, x)};
  if (c.node.attr_int("keepdims", 1) != 0) y.insert(y.end(), 2, Dim(1));
  c.set_shape(0, std::move(y));
}

Kernel prepare_global(PrepareContext& c) {
  return [x = c.in(0).dims, channels = c.out(0).dims[1]](const KernelArgs& args) {
    blocked_global_average(x[0], channels, x[4], x[2], x[3], args.in<float>(0), args.out<float>(0));
  };
}

const Register max_pool{{.name = "BlockedMaxPool",
                         .domain = "backpass",
                         .since = 1,
                         .doc = "MaxPool of blocked values",
                         .types = kTypes,
                         .infer = infer_window,
                         .prepare = prepare_max,
                         .is_lowered = true}};

const Register average_pool{{.name = "BlockedAveragePool",
                             .domain = "backpass",
                             .since = 1,
                             .doc = "AveragePool of blocked values",
                             .types = kTypes,
                             .infer = infer_window,
                             .prepare = prepare_average,
                             .is_lowered = true}};

const Register global_average_pool{{.name = "BlockedGlobalAveragePool",
                                    .domain = "backpass",
                                    .since = 1,
                                    .doc = "GlobalAveragePool of blocked values, plain result",
                                    .types = kTypes,
                                    .infer = infer_global,
                                    .prepare = prepare_global,
                                    .is_lowered = true}};

}  // namespace
}  // namespace backpass
