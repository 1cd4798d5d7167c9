// MaxPoolGrad and AveragePoolGrad: gradients of pooling with respect to its input. ONNX Runtime gives these nodes no
// input that tells the extents of X: they are taken from the declared type of the output, or from an optional last
// input X, of which only the extents matter.
#include <algorithm>
#include <string>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "ops/pooling/pool_common.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c, std::size_t x_input) {
  c.set_dtype(0, c.dtype(0));
  if (c.has_input(x_input)) {
    c.set_shape(0, c.shape(x_input));
    return;
  }
  const Shape& dy = c.shape(0);
  c.require(dy.size() >= 3, "dY is ", shown(dy), ": expected [batch, channels, spatial...]");
  const Value* dx = c.node.output(0);
  if (dx == nullptr || !dx->type.shape) {
    c.require(c.constant(0) == nullptr, "shape of the result: got none, expected input ", x_input,
              " or a declared shape of the output");
    throw NotKnownYet{};
  }
  Shape x = *dx->type.shape;
  c.require(x.size() == dy.size(), "output is declared ", shown(x), ": expected ", dy.size(), " axes, as dY has");
  std::copy_n(dy.begin(), 2, x.begin());
  c.set_shape(0, std::move(x));
}

void check_pooled(const PrepareContext& c, const PoolGeometry& g) {
  bool ceil_mode = c.node.attr_int("ceil_mode", 0) != 0;
  for (std::size_t i = 0; i < g.in.size(); ++i) {
    rules::Window w{g.kernel[i], g.stride[i], g.dilation[i], g.pad_begin[i], g.pad_end[i]};
    c.require(rules::window_output(c.node, g.in[i], w, ceil_mode).is(g.out[i]), "dY is ", shown(c.in(0).dims),
              ": not the result of pooling ", shown(c.out(0).dims), " by the attributes");
  }
}

void infer_max(InferContext& c) {
  c.require(c.node.attr_int("storage_order", 0) == 0, "attribute storage_order is not 0: expected row-major indices");
  c.require(c.dtype(1) == DType::int64, "indices have element type ", name_of(c.dtype(1)), ": expected int64");
  if (c.knows_shape(0) && c.knows_shape(1)) {
    c.require(c.rank(0) == c.rank(1), "indices are ", shown(c.shape(1)), ": expected the shape of dY ",
              shown(c.shape(0)));
    for (std::size_t i = 0; i < c.rank(0); ++i) c.unify(c.shape(0)[i], c.shape(1)[i], "extents of dY and indices");
  }
  infer(c, 2);
}

Kernel prepare_max(PrepareContext& c) {
  std::int64_t count = c.in(0).size();
  std::int64_t size = c.out(0).size();
  std::string label = c.node.label();
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [=](const KernelArgs& args) {
      const T* dy = args.in<T>(0);
      const auto* at = args.in<std::int64_t>(1);
      T* dx = args.out<T>(0);
      std::fill_n(dx, size, T(0));
      for (std::int64_t i = 0; i < count; ++i) {
        if (at[i] < 0 || at[i] >= size) {
          fail(label, " index ", at[i], " at position ", i, ": expected [0, ", size, ")");
        }
        dx[at[i]] += dy[i];
      }
    };
  });
  return kernel;
}

void infer_places(InferContext& c) { infer(c, 2); }

Kernel prepare_places(PrepareContext& c) {
  const PoolGeometry g = pool_geometry(c.node, c.out(0).dims, c.in(0).dims);
  check_pooled(c, g);
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [windows = PoolWindows(g)](const KernelArgs& a) {
      max_pool_places_backward<T>(windows, a.in<T>(0), a.in<std::uint8_t>(1), a.out<T>(0));
    };
  });
  return kernel;
}

void infer_average(InferContext& c) { infer(c, 1); }

Kernel prepare_average(PrepareContext& c) {
  PoolGeometry g = pool_geometry(c.node, c.out(0).dims, c.in(0).dims);
  check_pooled(c, g);
  bool count_padding = c.node.attr_int("count_include_pad", 0) != 0;
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [windows = PoolWindows(g), count_padding](const KernelArgs& args) {
      average_pool_backward<T>(windows, args.in<T>(0), args.out<T>(0), count_padding);
    };
  });
  return kernel;
}

/// Both are linear in dY; the last input only tells extents.
void max_gradient(GradientContext& g) {
  g.set(0, g.reshape_like(g.gather(g.reshape(g.dy(), {-1}), g.reshape(g.x(1), {-1}), 0), g.x()));
  if (g.has_input(2)) g.set_zero(2);
}

void average_gradient(GradientContext& g) {
  g.set(0, g.op("AveragePool", {g.dy()}, {g.node.attributes.begin(), g.node.attributes.end()}));
  if (g.has_input(1)) g.set_zero(1);
}

const Register max_pool_grad{{.name = "MaxPoolGrad",
                              .since = 9,
                              .doc = "gradient of MaxPool: dY added to where the indices point",
                              .inputs = {2, 3},
                              .types = types::floats,
                              .infer = infer_max,
                              .prepare = prepare_max,
                              .gradient = max_gradient,
                              .half_through_float = true}};

const Register max_pool_places_grad{{.name = "MaxPoolPlacesGrad",
                                     .domain = "backpass",
                                     .doc = "gradient of MaxPoolPlaces",
                                     .inputs = {2, 3},
                                     .types = types::floats,
                                     .infer = infer_places,
                                     .prepare = prepare_places,
                                     .half_through_float = true,
                                     .separate_axes = 2,
                                     .is_lowered = true}};

const Register average_pool_grad{{.name = "AveragePoolGrad",
                                  .since = 9,
                                  .doc = "gradient of AveragePool: dY shared evenly by each window",
                                  .inputs = {1, 2},
                                  .types = types::floats,
                                  .infer = infer_average,
                                  .prepare = prepare_average,
                                  .gradient = average_gradient,
                                  .half_through_float = true,
                                  .separate_axes = 2}};

}  // namespace
}  // namespace backpass
