// ONNX Runtime's LAMB for many tensors:
//   LambOptimizer(signal, loss_scale, norm, rate, step, then of each weight: w, g, m1, m2, w16)
//     -> step + 1, then of each weight: new w, change of w, m1, m2, w16
// Gradients are of a loss times loss_scale, and `norm` is theirs. With signal false nothing changes.
#include <cmath>
#include <cstring>
#include <limits>

#include "graph/op.hpp"
#include "ops/optimizers/gradient_scale.hpp"
#include "ops/optimizers/multi_tensor.hpp"
#include "ops/read_scalar.hpp"
#include "support/convert.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum In : std::uint8_t { kSignal, kLossScale, kNorm, kRate, kStep, kFirstWeight };
enum Part : std::uint8_t { kWeight, kGradient, kFirst, kSecond, kWeight16, kParts };

std::size_t weight_count(const Node& node) { return (node.inputs.size() - kFirstWeight + kParts - 1) / kParts; }

std::size_t input_of(std::size_t weight, Part part) { return kFirstWeight + weight * kParts + part; }
std::size_t output_of(std::size_t weight, Part part) { return 1 + weight * kParts + part; }

void infer(InferContext& c) {
  const std::size_t least = input_of(0, kSecond) + 1;
  c.require(c.input_count() >= least, "got ", c.input_count(), " inputs, expected at least ", least);
  const std::size_t most = 1 + kParts * weight_count(c.node);
  c.require(c.outputs.size() <= most, "got ", c.outputs.size(), " outputs, expected at most ", most, " for ",
            weight_count(c.node), " weights");
  c.set(0, DType::int64, c.has_input(kStep) && c.knows_shape(kStep) ? c.shape(kStep) : Shape{1});
  for (std::size_t w = 0; w < weight_count(c.node); ++w) {
    c.require(types::reals.has(c.dtype(input_of(w, kWeight))), "weight ", w, ": got ",
              name_of(c.dtype(input_of(w, kWeight))), ", expected float32 or float64");
    for (const Part part : {kWeight, kGradient, kFirst, kSecond, kWeight16}) {
      const std::size_t input = input_of(w, part), output = output_of(w, part);
      if (output >= c.outputs.size()) break;
      if (!c.has_input(input)) {
        c.require(part == kWeight16, "input ", input, " is missing");
        c.set_dtype(output, DType::float16);
      } else {
        c.set_dtype(output, c.dtype(input));
      }
      if (c.knows_shape(input_of(w, kWeight))) c.set_shape(output, c.shape(input_of(w, kWeight)));
    }
  }
}

/// Settings of every weight: attributes are lists, and a list that ends early goes on with its default.
std::vector<WeightSettings> settings_of(const Node& node, std::size_t weights) {
  auto list = [&](const char* name, float otherwise) {
    std::vector<float> values = node.attr_floats(name);
    values.resize(std::max(weights, values.size()), otherwise);
    return values;
  };
  const auto alpha = list("alpha", 0.9F), beta = list("beta", 0.999F), decay = list("lambda", 0);
  const auto epsilon = list("epsilon", 1e-6F), max_norm = list("max_norm_clip", 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<WeightSettings> settings(weights);
  for (std::size_t i = 0; i < weights; ++i) {
    settings[i].alpha = alpha[i];
    settings[i].beta = beta[i];
    settings[i].weight_decay = decay[i];
    settings[i].epsilon = epsilon[i];
    settings[i].max_norm = max_norm[i];
    settings[i].ratio_min = node.attr_float("ratio_min", -kInfinity);
    settings[i].ratio_max = node.attr_float("ratio_max", kInfinity);
    settings[i].correct_bias = node.attr_int("do_bias_correction", 1) != 0;
  }
  return settings;
}

/// Where one weight's tensors come from and go to.
struct WeightPlan {
  DType dtype = DType::undefined, gradient = DType::undefined;
  DType change = DType::undefined, copy16 = DType::undefined;  // of outputs
  std::int64_t n = 0;
  std::size_t input = 0, output = 0;  // its first ones
  std::size_t scratch[kParts] = {};   // where there is no output; of the gradient in the weight's element type
  bool has_output[kParts] = {};

  std::size_t bytes() const { return byte_size(dtype, n); }
  void* target(const KernelArgs& a, Part part) const {
    return has_output[part] ? a.outputs[output + part] : a.scratch + scratch[part];
  }
};

WeightPlan plan_weight(PrepareContext& c, std::size_t w) {
  const TensorInfo& weight = c.in(input_of(w, kWeight));
  WeightPlan plan;
  plan.dtype = weight.dtype;
  plan.gradient = c.in(input_of(w, kGradient)).dtype;
  plan.n = weight.size();
  plan.input = input_of(w, kWeight);
  plan.output = output_of(w, kWeight);
  for (const Part part : {kGradient, kFirst, kSecond}) {
    const TensorInfo& t = c.in(input_of(w, part));
    const bool fits = t.dims == weight.dims && (part == kGradient ? is_float(t.dtype) : t.dtype == weight.dtype);
    c.require(fits, "input ", input_of(w, part), ": got ", name_of(t.dtype), shown(t.dims), ", expected ",
              name_of(weight.dtype), shown(weight.dims));
  }
  for (const Part part : {kWeight, kGradient, kFirst, kSecond, kWeight16}) {
    plan.has_output[part] = c.has_output(output_of(w, part));
  }
  for (const Part part : {kWeight, kFirst, kSecond}) {
    if (!plan.has_output[part]) plan.scratch[part] = c.reserve(plan.bytes());
  }
  plan.scratch[kGradient] = c.reserve(plan.bytes());  // of the gradient, then of the change
  if (plan.has_output[kGradient]) plan.change = c.out(output_of(w, kGradient)).dtype;
  if (plan.has_output[kWeight16]) plan.copy16 = c.out(output_of(w, kWeight16)).dtype;
  return plan;
}

/// Outputs start as copies of inputs, and are updated in place.
WeightMemory begin(const WeightPlan& p, const KernelArgs& a) {
  for (const Part part : {kWeight, kFirst, kSecond}) {
    std::memcpy(p.target(a, part), a.inputs[p.input + part], p.bytes());
  }
  const void* gradient = a.inputs[p.input + kGradient];
  if (p.gradient != p.dtype) {
    Conversion(p.gradient, p.dtype).parallel(gradient, a.scratch + p.scratch[kGradient], p.n);
    gradient = a.scratch + p.scratch[kGradient];
  }
  return {p.dtype, p.n, p.target(a, kWeight), gradient, p.target(a, kFirst), p.target(a, kSecond)};
}

void finish(const WeightPlan& p, const KernelArgs& a) {
  const void* after = p.target(a, kWeight);
  if (p.has_output[kWeight16]) Conversion(p.dtype, p.copy16).parallel(after, a.outputs[p.output + kWeight16], p.n);
  if (!p.has_output[kGradient]) return;
  void* change = a.scratch + p.scratch[kGradient];
  visit_real(p.dtype, [&]<class T>() {
    const T* before = a.in<T>(p.input);
    for (std::int64_t i = 0; i < p.n; ++i) static_cast<T*>(change)[i] = static_cast<const T*>(after)[i] - before[i];
  });
  Conversion(p.dtype, p.change).parallel(change, a.outputs[p.output + kGradient], p.n);
}

Kernel prepare(PrepareContext& c) {
  std::vector<WeightPlan> plans;
  for (std::size_t w = 0; w < weight_count(c.node); ++w) plans.push_back(plan_weight(c, w));
  const std::vector<WeightSettings> settings = settings_of(c.node, plans.size());
  std::vector<std::size_t> numbers(plans.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  const ScalarInput rate(c, kRate, 0), step(c, kStep, 1), signal(c, kSignal, 1), norm(c, kNorm, 0),
      loss_scale(c, kLossScale, 1);
  const bool wants_step = c.has_output(0);
  return [=](const KernelArgs& a) {
    const bool update = signal.read(a) != 0;
    const auto t = static_cast<std::int64_t>(step.read(a));
    if (wants_step) *a.out<std::int64_t>(0) = t + (update ? 1 : 0);
    std::vector<WeightMemory> weights;
    weights.reserve(plans.size());
    for (const WeightPlan& plan : plans) weights.push_back(begin(plan, a));
    if (update) {
      OptimizerStep at{.rate = rate.read(a), .step = t, .gradient_scale = 1 / loss_scale.read(a)};
      at.norm = norm.read(a) * at.gradient_scale;
      run_optimizer(Algorithm::lamb, at, {settings, numbers}, weights);
    }
    for (const WeightPlan& plan : plans) finish(plan, a);
  };
}

const Register kLamb({.name = "LambOptimizer",
                      .domain = "com.microsoft",
                      .doc = "one LAMB step of many tensors",
                      .inputs = {0, -1},  // the first five may be omitted
                      .outputs = {1, -1},
                      .types = {},
                      .infer = infer,
                      .prepare = prepare});

}  // namespace
}  // namespace backpass
