// ONNX Runtime's gradient descent for one tensor: SGDOptimizer(rate, w, g) -> new w, change of w
#include "graph/op.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "ops/read_scalar.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer_sgd(InferContext& c) {
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, c.dtype(1));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_shape(k, c.shape(1));
}

Kernel prepare_sgd(PrepareContext& c) {
  DType dtype = c.in(1).dtype;
  std::int64_t n = c.in(1).size();
  c.require(c.in(2).dims == c.in(1).dims && c.in(2).dtype == dtype, "gradient: got ", name_of(c.in(2).dtype),
            shown(c.in(2).dims), ", expected ", name_of(dtype), shown(c.in(1).dims));
  ScalarInput rate(c, 0, 0);
  bool wants_weight = c.has_output(0);
  bool wants_change = c.has_output(1);
  return [=](const KernelArgs& a) {
    double r = rate.read(a);
    visit_real(dtype, [&]<class T>() {
      if (wants_change) {
        for (std::int64_t i = 0; i < n; ++i) a.out<T>(1)[i] = static_cast<T>(-r) * a.in<T>(2)[i];
      }
      if (wants_weight) sgd_step<T>(sgd_factors({}, r), sgd_tensors(a.in<T>(1), a.in<T>(2), a.out<T>(0)), n);
    });
  };
}

const Register kSgd({.name = "SGDOptimizer",
                     .domain = "com.microsoft",
                     .doc = "one gradient descent step of one tensor",
                     .inputs = {3, 3},
                     .outputs = {1, 2},
                     .types = types::reals,
                     .infer = infer_sgd,
                     .prepare = prepare_sgd});

}  // namespace
}  // namespace backpass
