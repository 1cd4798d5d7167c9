// ONNX Runtime's Adam for one tensor:
//   AdamOptimizer(rate, step, w, g, m1, m2, w16, loss_scale, norm, signal) -> step + 1, m1, m2, new w, change of w, w16
// Gradients are of a loss times loss_scale, and `norm` is theirs, of all weights together. With signal false nothing
// changes.
#include <cstring>
#include <optional>

#include "graph/op.hpp"
#include "ops/optimizers/gradient_scale.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "ops/read_scalar.hpp"
#include "support/convert.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum In : std::uint8_t { kRate, kStep, kWeight, kGradient, kFirst, kSecond, kWeight16, kLossScale, kNorm, kSignal };
enum Out : std::uint8_t { kNewStep, kNewFirst, kNewSecond, kNewWeight, kChange, kNewWeight16 };

void infer(InferContext& c) {
  c.set(kNewStep, DType::int64, {});
  const std::int64_t mode = c.node.attr_int("weight_decay_mode", 0);
  c.require(mode == 0 || mode == 1, "weight_decay_mode: got ", mode, ", expected 0 or 1");
  c.require(types::reals.has(c.dtype(kWeight)), "weights: got ", name_of(c.dtype(kWeight)),
            ", expected float32 or float64");
  c.set_dtype(kNewFirst, c.dtype(kFirst));
  c.set_dtype(kNewSecond, c.dtype(kSecond));
  c.set_dtype(kNewWeight, c.dtype(kWeight));
  c.set_dtype(kChange, c.dtype(kGradient));
  c.set_dtype(kNewWeight16, c.has_input(kWeight16) ? c.dtype(kWeight16) : DType::float16);
  if (c.knows_shape(kStep)) c.set_shape(kNewStep, c.shape(kStep));
  for (std::size_t k = kNewFirst; k <= kNewWeight16; ++k) c.set_shape(k, c.shape(kWeight));
}

WeightSettings settings_of(const Node& node) {
  WeightSettings s;
  s.alpha = node.attr_float("alpha", 0.9F);
  s.beta = node.attr_float("beta", 0.999F);
  s.epsilon = node.attr_float("epsilon", 1e-6F);
  s.weight_decay = node.attr_float("lambda", 0);
  s.max_norm = node.attr_float("max_norm_clip", 1);
  s.correct_bias = node.attr_int("do_bias_correction", 1) != 0;
  s.decays_after = node.attr_int("weight_decay_mode", 0) == 1;
  return s;
}

/// A tensor in the element type of the weight; scratch memory holds it where it has another.
class Converted {
 public:
  Converted(PrepareContext& c, const TensorInfo& info, DType wanted)
      : conversion_(info.dtype, wanted), n_(info.size()), is_same_(info.dtype == wanted) {
    if (!is_same_) scratch_ = c.reserve(byte_size(wanted, n_));
  }
  const void* read(const KernelArgs& a, const void* from) const {
    if (is_same_) return from;
    conversion_.parallel(from, a.scratch + scratch_, n_);
    return a.scratch + scratch_;
  }

 private:
  Conversion conversion_;
  std::int64_t n_;
  bool is_same_;
  std::size_t scratch_ = 0;
};

void check(const PrepareContext& c) {
  const TensorInfo& w = c.in(kWeight);
  for (const std::size_t i : {std::size_t{kGradient}, std::size_t{kFirst}, std::size_t{kSecond}}) {
    const bool is_gradient = i == kGradient;
    c.require(c.in(i).dims == w.dims && (is_gradient ? is_float(c.in(i).dtype) : c.in(i).dtype == w.dtype), "input ", i,
              ": got ", name_of(c.in(i).dtype), shown(c.in(i).dims), ", expected ", name_of(w.dtype), shown(w.dims));
  }
}

/// What is left to do with the new weight: its change, its 16-bit copy.
struct Results {
  std::int64_t n;
  DType weight;
  std::optional<Conversion> to_change, to_16;

  void write(const KernelArgs& a, const void* weight_out, void* change) const {
    if (to_16) to_16->parallel(weight_out, a.outputs[kNewWeight16], n);
    if (!to_change) return;
    visit_real(weight, [&]<class T>() {
      const T* before = a.in<T>(kWeight);
      const T* after = static_cast<const T*>(weight_out);
      for (std::int64_t i = 0; i < n; ++i) static_cast<T*>(change)[i] = after[i] - before[i];
    });
    if (change != a.outputs[kChange]) to_change->parallel(change, a.outputs[kChange], n);
  }
};

Kernel prepare(PrepareContext& c) {
  check(c);
  const DType dtype = c.in(kWeight).dtype;
  const std::int64_t n = c.in(kWeight).size();
  const std::size_t bytes = byte_size(dtype, n);
  const ScalarInput rate(c, kRate, 0), step(c, kStep, 1), signal(c, kSignal, 1);
  const GradientScale scale(c, kLossScale, kNorm);
  const WeightSettings settings = settings_of(c.node);
  const Converted gradient(c, c.in(kGradient), dtype);
  Results results{n, dtype, std::nullopt, std::nullopt};
  if (c.has_output(kChange)) results.to_change.emplace(dtype, c.out(kChange).dtype);
  if (c.has_output(kNewWeight16)) results.to_16.emplace(dtype, c.out(kNewWeight16).dtype);
  const bool wants_weight = c.has_output(kNewWeight);
  const bool has_own_change = !c.has_output(kChange) || c.out(kChange).dtype == dtype;
  const std::size_t scratch = c.reserve(wants_weight ? 0 : bytes);
  const std::size_t change_scratch = c.reserve(has_own_change ? 0 : bytes);
  return [=](const KernelArgs& a) {
    const bool update = signal.read(a) != 0;
    const double t = step.read(a);
    *a.out<std::int64_t>(kNewStep) = static_cast<std::int64_t>(t) + (update ? 1 : 0);
    void* weight = wants_weight ? a.outputs[kNewWeight] : a.scratch + scratch;
    if (update) {
      const StepFactors factors = adam_factors(settings, rate.read(a), t, scale.read(a, settings.max_norm));
      const void* g = gradient.read(a, a.inputs[kGradient]);
      visit_real(dtype, [&]<class T>() {
        adam_step<T>(factors,
                     {a.in<T>(kWeight), static_cast<const T*>(g), a.in<T>(kFirst), a.in<T>(kSecond),
                      static_cast<T*>(weight), a.out<T>(kNewFirst), a.out<T>(kNewSecond)},
                     n);
      });
    } else {
      std::memcpy(weight, a.inputs[kWeight], bytes);
      std::memcpy(a.outputs[kNewFirst], a.inputs[kFirst], bytes);
      std::memcpy(a.outputs[kNewSecond], a.inputs[kSecond], bytes);
    }
    results.write(a, weight, has_own_change ? a.outputs[kChange] : a.scratch + change_scratch);
  };
}

const Register kAdam({.name = "AdamOptimizer",
                      .domain = "com.microsoft",
                      .doc = "one Adam step of one tensor",
                      .inputs = {6, 10},
                      .outputs = {3, 6},
                      .types = types::floats,
                      .infer = infer,
                      .prepare = prepare});

}  // namespace
}  // namespace backpass
