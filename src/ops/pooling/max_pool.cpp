// MaxPool: largest element of each window, and where it was.
#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "ops/pooling/pool_common.hpp"
#include "ops/pooling/pool_rule.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  if (c.has_output(1)) c.set_dtype(1, DType::int64);
  std::int64_t order = c.node.attr_int("storage_order", 0);
  c.require(order == 0 || order == 1, "attribute storage_order is ", order, ": expected 0 or 1");
  Shape y = pool_shape(c, c.shape(0));
  if (c.has_output(1)) c.set_shape(1, y);
  c.set_shape(0, std::move(y));
}

template <class T>
Kernel typed_kernel(const PoolGeometry& g, bool wants_indices, bool column_major) {
  return [=, windows = PoolWindows(g)](const KernelArgs& args) {
    max_pool<T>(windows, args.in<T>(0), args.out<T>(0), wants_indices ? args.out<std::int64_t>(1) : nullptr,
                column_major);
  };
}

Kernel prepare(PrepareContext& c) {
  PoolGeometry g = pool_geometry(c.node, c.in(0).dims, c.out(0).dims);
  bool column_major = c.node.attr_int("storage_order", 0) == 1;
  bool indices = c.has_output(1);
  switch (c.in(0).dtype) {
    case DType::int8:
      return typed_kernel<std::int8_t>(g, indices, column_major);
    case DType::uint8:
      return typed_kernel<std::uint8_t>(g, indices, column_major);
    case DType::float64:
      return typed_kernel<double>(g, indices, column_major);
    default:
      return typed_kernel<float>(g, indices, column_major);
  }
}

const Register max_pool_op{{.name = "MaxPool",
                            .since = 22,
                            .doc = "largest element of each window, optionally with its position",
                            .inputs = {1, 1},
                            .outputs = {1, 2},
                            .types = types::floats | DTypeSet{DType::int8, DType::uint8},
                            .infer = infer,
                            .prepare = prepare,
                            .gradient = max_pool_gradient,
                            .fused_gradient = max_pool_fused_gradient,
                            .half_through_float = true}};

}  // namespace
}  // namespace backpass
