// AveragePool: mean of each window.
#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "ops/pooling/pool_common.hpp"
#include "ops/pooling/pool_rule.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_shape(0, pool_shape(c, c.shape(0)));
}

Kernel prepare(PrepareContext& c) {
  PoolGeometry g = pool_geometry(c.node, c.in(0).dims, c.out(0).dims);
  bool count_padding = c.node.attr_int("count_include_pad", 0) != 0;
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [windows = PoolWindows(g), count_padding](const KernelArgs& args) {
      average_pool<T>(windows, args.in<T>(0), args.out<T>(0), count_padding);
    };
  });
  return kernel;
}

const Register average_pool_op{{.name = "AveragePool",
                                .since = 22,
                                .doc = "mean of each window",
                                .types = types::floats,
                                .infer = infer,
                                .prepare = prepare,
                                .gradient = average_pool_gradient,
                                .fused_gradient = average_pool_fused_gradient,
                                .half_through_float = true,
                                .separate_axes = 2}};

}  // namespace
}  // namespace backpass
