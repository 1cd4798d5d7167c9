// MaxPoolPlaces(x) -> y, places: MaxPool in training plans, where positions take a byte each instead of eight.
#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "ops/pooling/pool_common.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::uint8);
  Shape y = pool_shape(c, c.shape(0));
  c.set_shape(1, y);
  c.set_shape(0, std::move(y));
}

Kernel prepare(PrepareContext& c) {
  const PoolGeometry g = pool_geometry(c.node, c.in(0).dims, c.out(0).dims);
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [windows = PoolWindows(g)](const KernelArgs& a) {
      max_pool_places<T>(windows, a.in<T>(0), a.out<T>(0), a.out<std::uint8_t>(1));
    };
  });
  return kernel;
}

const Register max_pool_places_op{{.name = "MaxPoolPlaces",
                                   .domain = "backpass",
                                   .doc = "largest element of each window of an image, and its place in the window",
                                   .inputs = {1, 1},
                                   .outputs = {2, 2},
                                   .types = types::floats,
                                   .infer = infer,
                                   .prepare = prepare,
                                   .half_through_float = true,
                                   .separate_axes = 2,
                                   .is_lowered = true}};

}  // namespace
}  // namespace backpass
