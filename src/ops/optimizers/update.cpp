// What an optimizer does to one parameter, as a node of a training graph: the results go to the memory of the parameter
// and of the optimizer's states (graph/overwriting.hpp), with the bits of the optimizer's pass over all parameters.
//   SGDUpdate(rate, step, w, g) -> w
//   AdamWUpdate(rate, step, w, g, m1, m2) -> w, m1, m2
#include "graph/op.hpp"
#include "ops/optimizers/adamw_attributes.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "ops/read_scalar.hpp"
#include "support/interruption.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::size_t kWeight = 2, kGradient = 3, kFirstState = 4;

void infer(InferContext& c) {
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, c.dtype(kWeight));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_shape(k, c.shape(kWeight));
}

void check_alike(const PrepareContext& c) {
  const TensorInfo& w = c.in(kWeight);
  for (std::size_t i = kGradient; i < c.inputs.size(); ++i) {
    c.require(c.in(i).dims == w.dims && c.in(i).dtype == w.dtype, "input ", i, ": got ", name_of(c.in(i).dtype),
              shown(c.in(i).dims), ", expected ", name_of(w.dtype), shown(w.dims));
  }
}

Kernel prepare_sgd(PrepareContext& c) {
  check_alike(c);
  const DType dtype = c.in(kWeight).dtype;
  const std::int64_t n = c.in(kWeight).size();
  const ScalarInput rate(c, 0, 0);
  const WeightSettings settings = sgd_attributes(c.node);
  const double scale = exact_attribute(c.node, "gradient_scale", 1);
  return [=](const KernelArgs& a) {
    commit_call();
    visit_real(dtype, [&]<class T>() {
      sgd_step<T>(sgd_factors(settings, rate.read(a), scale),
                  sgd_tensors(a.in<T>(kWeight), a.in<T>(kGradient), a.out<T>(0)), n);
    });
  };
}

Kernel prepare_adamw(PrepareContext& c) {
  check_alike(c);
  const DType dtype = c.in(kWeight).dtype;
  const std::int64_t n = c.in(kWeight).size();
  const ScalarInput rate(c, 0, 0), step(c, 1, 1);
  const WeightSettings settings = adamw_attributes(c.node);
  const double scale = exact_attribute(c.node, "gradient_scale", 1);
  return [=](const KernelArgs& a) {
    commit_call();
    const StepFactors factors = adam_factors(settings, rate.read(a), step.read(a), scale);
    visit_real(dtype, [&]<class T>() {
      adam_step<T>(factors,
                   {a.in<T>(kWeight), a.in<T>(kGradient), a.in<T>(kFirstState), a.in<T>(kFirstState + 1), a.out<T>(0),
                    a.out<T>(1), a.out<T>(2)},
                   n);
    });
  };
}

const Register kSgd({.name = "SGDUpdate",
                     .domain = "backpass",
                     .doc = "one gradient descent step of a parameter, in place",
                     .inputs = {4, 4},
                     .types = types::reals,
                     .infer = infer,
                     .prepare = prepare_sgd});

const Register kAdamW({.name = "AdamWUpdate",
                       .domain = "backpass",
                       .doc = "one AdamW step of a parameter and its moments, in place",
                       .inputs = {6, 6},
                       .outputs = {3, 3},
                       .types = types::reals,
                       .infer = infer,
                       .prepare = prepare_adamw});

}  // namespace
}  // namespace backpass
