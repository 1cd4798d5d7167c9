// Optimizers over sequences of tensors, as in ONNX Runtime's optimizer models:
//   AdamWOptimizer(rate, step, weights, gradients, moments_1, moments_2, signal) -> done, weights, moments_1, moments_2
//   SGDOptimizerV2(rate, weights, gradients, signal) -> done, weights
//   InplaceClipGradNorm(gradients) -> gradients
// The results are new tensors; with signal false they are the inputs and `done` is false.
#include <algorithm>
#include <utility>

#include "graph/op.hpp"
#include "ops/optimizers/adamw_attributes.hpp"
#include "ops/optimizers/clip_gradients.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "ops/read_scalar.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using Items = std::vector<RuntimeValue>;

double scalar(const ComputeContext& c, std::size_t input, const char* what) {
  const Tensor& t = c.tensor(input);
  c.require(t.size() == 1, what, ": got shape ", shown(t.dims()), ", expected a single value");
  return read_scalar(t.dtype(), t.data());
}

bool wants_update(const ComputeContext& c, std::size_t signal) {
  return !c.has_input(signal) || scalar(c, signal, "update_signal") != 0;
}

Tensor done_flag(bool done) {
  Tensor t(DType::boolean, {1});
  *t.as<bool>() = done;
  return t;
}

/// All sequences must hold tensors of the same shapes and type as the weights.
void check_alike(const ComputeContext& c, std::size_t weights, std::size_t first, std::size_t last) {
  const Items& w = c.sequence(weights);
  for (std::size_t s = first; s <= last; ++s) {
    const Items& other = c.sequence(s);
    c.require(other.size() == w.size(), "input ", s, ": got ", other.size(), " tensors, expected ", w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      c.require(w[i].is_tensor() && other[i].is_tensor() && w[i].tensor.dims() == other[i].tensor.dims() &&
                    w[i].tensor.dtype() == other[i].tensor.dtype(),
                "input ", s, ", tensor ", i, ": expected the shape and element type of the weight");
    }
  }
}

void set_sequence(ComputeContext& c, std::size_t output, Items items) {
  if (c.has_output(output)) c.outputs[output] = RuntimeValue::sequence(std::move(items));
}

/// Output 0 is bool[1]; outputs 1.. repeat the types of inputs `first`...
void infer_update(InferContext& c, std::size_t first) {
  c.set(0, DType::boolean, {1});
  for (std::size_t k = 1; k < c.outputs.size(); ++k) {
    std::size_t input = k == 1 ? first : first + k;
    c.set_type(k, c.type(input));
  }
}

void infer_adamw(InferContext& c) { infer_update(c, 2); }
void infer_sgd(InferContext& c) { infer_update(c, 1); }

StepFactors adamw_factors(const ComputeContext& c) {
  const WeightSettings settings = adamw_attributes(c.node);
  const double step = scalar(c, 1, "step");
  c.require(step > 0 || !settings.correct_bias, "step: got ", step, ", expected a positive number");
  return adam_factors(settings, scalar(c, 0, "learning rate"), step);
}

void compute_adamw(ComputeContext& c) {
  constexpr std::size_t kWeights = 2, kGradients = 3, kFirst = 4, kSecond = 5, kSignal = 6;
  check_alike(c, kWeights, kGradients, kSecond);
  bool update = wants_update(c, kSignal);
  Items weights = c.sequence(kWeights);
  Items first = c.sequence(kFirst);
  Items second = c.sequence(kSecond);
  if (update) {
    const StepFactors factors = adamw_factors(c);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Tensor w = weights[i].tensor;
      const Tensor& g = c.sequence(kGradients)[i].tensor;
      Tensor nw(w.dtype(), w.dims()), nm(w.dtype(), w.dims()), nv(w.dtype(), w.dims());
      visit_real(w.dtype(), [&]<class T>() {
        adam_step<T>(factors,
                     {w.as<T>(), g.as<T>(), std::as_const(first[i].tensor).as<T>(),
                      std::as_const(second[i].tensor).as<T>(), nw.as<T>(), nm.as<T>(), nv.as<T>()},
                     w.size());
      });
      weights[i] = nw;
      first[i] = nm;
      second[i] = nv;
    }
  }
  c.outputs[0] = done_flag(update);
  set_sequence(c, 1, std::move(weights));
  set_sequence(c, 2, std::move(first));
  set_sequence(c, 3, std::move(second));
}

void compute_sgd(ComputeContext& c) {
  constexpr std::size_t kWeights = 1, kGradients = 2, kSignal = 3;
  check_alike(c, kWeights, kGradients, kGradients);
  bool update = wants_update(c, kSignal);
  Items weights = c.sequence(kWeights);
  const StepFactors factors = sgd_factors({}, scalar(c, 0, "learning rate"));
  for (std::size_t i = 0; update && i < weights.size(); ++i) {
    const Tensor w = weights[i].tensor;
    const Tensor& g = c.sequence(kGradients)[i].tensor;
    Tensor nw(w.dtype(), w.dims());
    visit_real(w.dtype(),
               [&]<class T>() { sgd_step<T>(factors, sgd_tensors(w.as<T>(), g.as<T>(), nw.as<T>()), w.size()); });
    weights[i] = nw;
  }
  c.outputs[0] = done_flag(update);
  set_sequence(c, 1, std::move(weights));
}

const Register kAdamW({.name = "AdamWOptimizer",
                       .domain = "com.microsoft",
                       .doc = "one AdamW step over sequences of tensors",
                       .inputs = {6, 7},
                       .outputs = {1, 4},
                       .types = {},
                       .infer = infer_adamw,
                       .compute = compute_adamw});

const Register kSgd({.name = "SGDOptimizerV2",
                     .domain = "com.microsoft",
                     .doc = "one gradient descent step over sequences of tensors",
                     .inputs = {3, 4},
                     .outputs = {1, 2},
                     .types = {},
                     .infer = infer_sgd,
                     .compute = compute_sgd});

void infer_clip(InferContext& c) { c.set_type(0, c.type(0)); }

void compute_clip(ComputeContext& c) {
  Items items = c.sequence(0);
  std::vector<Tensor> gradients;
  gradients.reserve(items.size());
  for (const RuntimeValue& v : items) gradients.push_back(v.tensor);
  const double factor = clip_factor(gradients, static_cast<double>(c.node.attr_float("max_norm", 1)));
  for (RuntimeValue& v : items) {
    const Tensor t = v.tensor;
    Tensor scaled(t.dtype(), t.dims());
    visit_real(t.dtype(), [&]<class T>() {
      std::transform(t.as<T>(), t.as<T>() + t.size(), scaled.as<T>(), [&](T x) { return x * static_cast<T>(factor); });
    });
    v = scaled;
  }
  set_sequence(c, 0, std::move(items));
}

const Register kClip({.name = "InplaceClipGradNorm",
                      .domain = "com.microsoft",
                      .doc = "gradients scaled down so that their joint norm is at most max_norm",
                      .types = {},
                      .infer = infer_clip,
                      .compute = compute_clip});

}  // namespace
}  // namespace backpass
