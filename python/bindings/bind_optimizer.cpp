#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "support/parallel.hpp"
#include "torch_exchange.hpp"
#include "training/optimizer_pass.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// How FusedAdam's weights decay, by its own numbers.
enum Decay : int { kInGradient = 0, kAfterStep = 1, kBeforeStep = 2 };

/// Tensors of torch, one per weight.
struct AdamTensors {
  nb::list parameters, gradients, first, second;
};

/// False: they do not lie alike.
bool find_memory(const AdamTensors& tensors, std::size_t i, WeightMemory& memory) {
  const TorchMemory w = torch_memory(tensors.parameters[i]);
  const TorchMemory others[] = {torch_memory(tensors.gradients[i]), torch_memory(tensors.first[i]),
                                torch_memory(tensors.second[i])};
  if (!is_float(w.dtype) || !w.is_dense()) return false;
  for (const TorchMemory& other : others) {
    if (other.dtype != w.dtype || !other.is_laid_out_as(w)) return false;
  }
  memory = {w.dtype, w.count, w.data, others[0].data, others[1].data, others[2].data};
  return true;
}

/// The moments of a weight: made by `start` where there are none yet.
nb::dict moments_of(const nb::dict& states, nb::handle parameter, const nb::object& start) {
  PyObject* found = PyDict_GetItemWithError(states.ptr(), parameter.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (found != nullptr && PyDict_Check(found) != 0 && PyDict_Size(found) != 0) return nb::borrow<nb::dict>(found);
  return nb::cast<nb::dict>(start(parameter));
}

nb::tuple adam_tensors(const nb::list& parameters, const nb::dict& states, const nb::object& start) {
  AdamTensors columns;
  const nb::str grad("grad");
  const nb::str first("exp_avg");
  const nb::str second("exp_avg_sq");
  for (nb::handle parameter : parameters) {
    nb::object gradient = nb::getattr(parameter, grad);
    if (gradient.is_none()) continue;
    const nb::dict moments = moments_of(states, parameter, start);
    columns.parameters.append(parameter);
    columns.gradients.append(gradient);
    columns.first.append(moments[first]);
    columns.second.append(moments[second]);
  }
  return nb::make_tuple(columns.parameters, columns.gradients, columns.first, columns.second);
}

nb::list adam_step(const AdamTensors& tensors, const OptimizerPass::Step& step, const WeightSettings& settings,
                   int num_threads) {
  const std::size_t count = tensors.parameters.size();
  for (const nb::list* list : {&tensors.gradients, &tensors.first, &tensors.second}) {
    if (list->size() != count) fail("adam_step: got a list of ", list->size(), " tensors, expected ", count);
  }
  std::vector<WeightMemory> weights(count);
  nb::list left_out;
  for (std::size_t i = 0; i < count; ++i) {
    if (!find_memory(tensors, i, weights[i])) left_out.append(i);
  }
  // No signal may stop it in its midst: half of the weights would have taken the step.
  const nb::gil_scoped_release unlocked;
  const ThreadScope threads(num_threads);
  OptimizerPass(Algorithm::adam, {settings}).run(step, weights);
  return left_out;
}

}  // namespace

void bind_optimizer(nb::module_& m) {
  m.def("adam_tensors", &adam_tensors, nb::arg("parameters"), nb::arg("states"), nb::arg("start"),
        nb::sig("def adam_tensors(parameters: list[typing.Any], states: dict[typing.Any, typing.Any], "
                "start: typing.Any) -> tuple[list[typing.Any], list[typing.Any], list[typing.Any], list[typing.Any]]"),
        "Those parameters that have a gradient, the gradients, and the moments of `states` in two lists; "
        "start(parameter) makes what a parameter's state holds where there is none.");
  m.def(
      "adam_step",
      [](nb::list parameters, nb::list gradients, nb::list first, nb::list second, double rate, std::int64_t step,
         double alpha, double beta, double epsilon, double weight_decay, int mode, bool correct_bias,
         double gradient_scale, int num_threads) {
        if (mode < kInGradient || mode > kBeforeStep) fail("adam_step: mode: got ", mode, ", expected 0, 1 or 2");
        WeightSettings settings;
        settings.alpha = alpha;
        settings.beta = beta;
        settings.epsilon = epsilon;
        settings.weight_decay = weight_decay;
        settings.correct_bias = correct_bias;
        settings.decays_gradient = mode == kInGradient;
        settings.decays_after = mode == kAfterStep;
        OptimizerPass::Step at;
        at.rate = rate;
        at.step = step;
        at.gradient_scale = gradient_scale;
        return adam_step({std::move(parameters), std::move(gradients), std::move(first), std::move(second)}, at,
                         settings, num_threads);
      },
      nb::arg("parameters"), nb::arg("gradients"), nb::arg("first"), nb::arg("second"), nb::arg("rate"),
      nb::arg("step"), nb::arg("alpha"), nb::arg("beta"), nb::arg("epsilon"), nb::arg("weight_decay"), nb::arg("mode"),
      nb::arg("correct_bias"), nb::arg("gradient_scale") = 1.0, nb::arg("num_threads") = 0,
      nb::sig("def adam_step(parameters: list[typing.Any], gradients: list[typing.Any], first: list[typing.Any], "
              "second: list[typing.Any], rate: float, step: int, alpha: float, beta: float, epsilon: float, "
              "weight_decay: float, mode: int, correct_bias: bool, gradient_scale: float = 1.0, num_threads: int = 0) "
              "-> list[int]"),
      "One step of Adam on tensors of torch, in place and in one pass. Mode: 0 decay is added to the gradient, 1 after "
      "the step, 2 before it. Left as they were: weights whose numbers are returned, since their four tensors do not "
      "lie alike in memory or have no common floating point type.");
}
