// LpPool: p-norm of each window.
#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "ops/pooling/pool_common.hpp"
#include "ops/pooling/pool_rule.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  std::int64_t p = c.node.attr_int("p", 2);
  c.require(p >= 1, "attribute p is ", p, ": expected a positive number");
  c.set_shape(0, pool_shape(c, c.shape(0)));
}

Kernel prepare(PrepareContext& c) {
  PoolGeometry g = pool_geometry(c.node, c.in(0).dims, c.out(0).dims);
  auto p = static_cast<double>(c.node.attr_int("p", 2));
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [windows = PoolWindows(g), p](const KernelArgs& args) {
      lp_pool<T>(windows, args.in<T>(0), args.out<T>(0), p);
    };
  });
  return kernel;
}

const Register lp_pool_op{{.name = "LpPool",
                           .since = 22,
                           .doc = "p-norm of each window",
                           .types = types::floats,
                           .infer = infer,
                           .prepare = prepare,
                           .gradient = lp_pool_gradient,
                           .half_through_float = true,
                           .separate_axes = 2}};

}  // namespace
}  // namespace backpass
