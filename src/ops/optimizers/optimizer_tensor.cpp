// ONNX Runtime's optimizers for one tensor:
//   SGDOptimizer(rate, w, g) -> new w, change of w
//   AdamOptimizer(rate, step, w, g, m1, m2, w16, loss_scale, norm, signal) -> step + 1, m1, m2, new w, change of w, w16
#include <algorithm>

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
      if (wants_weight) sgd_step(r, n, a.in<T>(1), a.in<T>(2), a.out<T>(0));
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

void infer_adam(InferContext& c) {
  c.set(0, DType::int64, {});
  for (std::size_t i : {6U, 7U, 8U}) {
    c.require(!c.has_input(i), "input ", i, ": 16-bit weights, loss scale and gradient norm are not supported");
  }
  c.require(!c.has_output(5), "output 5 (16-bit weights) is not supported");
  for (std::size_t k = 1; k <= 4; ++k) c.set_dtype(k, c.dtype(k < 3 ? k + 3 : 2));
  std::int64_t mode = c.node.attr_int("weight_decay_mode", 0);
  c.require(mode == 0 || mode == 1, "weight_decay_mode: got ", mode, ", expected 0 or 1");
  if (c.knows_shape(1)) c.set_shape(0, c.shape(1));
  for (std::size_t k = 1; k <= 4; ++k) c.set_shape(k, c.shape(2));
}

AdamW adam_settings(const Node& node) {
  AdamW p;
  p.alpha = node.attr_float("alpha", 0.9F);
  p.beta = node.attr_float("beta", 0.999F);
  p.epsilon = node.attr_float("epsilon", 1e-6F);
  p.weight_decay = node.attr_float("lambda", 0);
  p.correct_bias = node.attr_int("do_bias_correction", 1) != 0;
  p.decay_first = node.attr_int("weight_decay_mode", 0) == 0;
  return p;
}

Kernel prepare_adam(PrepareContext& c) {
  DType dtype = c.in(2).dtype;
  std::int64_t n = c.in(2).size();
  for (std::size_t i = 3; i <= 5; ++i) {
    c.require(c.in(i).dims == c.in(2).dims && c.in(i).dtype == dtype, "input ", i, ": got ", name_of(c.in(i).dtype),
              shown(c.in(i).dims), ", expected ", name_of(dtype), shown(c.in(2).dims));
  }
  ScalarInput rate(c, 0, 0), step(c, 1, 1), signal(c, 9, 1);
  AdamW settings = adam_settings(c.node);
  bool wants_weight = c.has_output(3);
  bool wants_change = c.has_output(4);
  std::size_t scratch = c.reserve(byte_size(dtype, n));
  return [=](const KernelArgs& a) {
    bool update = signal.read(a) != 0;
    AdamW p = settings;
    p.rate = rate.read(a);
    p.step = step.read(a);
    *a.out<std::int64_t>(0) = static_cast<std::int64_t>(p.step) + (update ? 1 : 0);
    visit_real(dtype, [&]<class T>() {
      T* weight = wants_weight ? a.out<T>(3) : reinterpret_cast<T*>(a.scratch + scratch);
      if (update) {
        adamw_step(p, n, a.in<T>(2), a.in<T>(3), a.in<T>(4), a.in<T>(5), weight, a.out<T>(1), a.out<T>(2));
      } else {
        std::copy_n(a.in<T>(2), n, weight);
        std::copy_n(a.in<T>(4), n, a.out<T>(1));
        std::copy_n(a.in<T>(5), n, a.out<T>(2));
      }
      if (!wants_change) return;
      for (std::int64_t i = 0; i < n; ++i) a.out<T>(4)[i] = weight[i] - a.in<T>(2)[i];
    });
  };
}

const Register kAdam({.name = "AdamOptimizer",
                      .domain = "com.microsoft",
                      .doc = "one Adam step of one tensor",
                      .inputs = {6, 10},
                      .outputs = {3, 6},
                      .types = types::reals,
                      .infer = infer_adam,
                      .prepare = prepare_adam});

}  // namespace
}  // namespace backpass
