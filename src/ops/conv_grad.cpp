// com.microsoft ConvGrad: gradients of Conv with respect to input, weights and bias, each optional.
#include "kernels/conv.hpp"
#include "ops/conv_common.hpp"
#include "ops/op.hpp"
#include "support/visit.hpp"

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

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = conv_geometry(c.node, c.in(kX).dims, c.in(kW).dims, c.in(kDy).dims);
  bool has_dx = c.has_output(0);
  bool has_dw = c.has_output(1);
  bool has_db = c.has_output(2);
  Kernel kernel;
  visit_real(c.in(kDy).dtype, [&]<class T>() {
    kernel = [=](const KernelArgs& args) {
      const T* dy = args.in<T>(kDy);
      if (has_dx) convolve_backward_data<T>(g, dy, args.in<T>(kW), nullptr, args.out<T>(0));
      if (has_dw) convolve_backward_weights<T>(g, args.in<T>(kX), dy, args.out<T>(1));
      if (has_db) sum_channels<T>(g.batch, g.groups * g.out_channels, g.out_size(), dy, args.out<T>(2));
    };
  });
  return kernel;
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
                          .half_through_float = true}};

}  // namespace
}  // namespace backpass
