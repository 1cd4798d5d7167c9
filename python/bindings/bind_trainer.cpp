#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <tuple>

#include "backpass/trainer.hpp"
#include "bindings.hpp"
#include "training_values.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

constexpr std::array<const char*, 3> kAlgorithms = {"sgd", "adam", "lamb"};

Algorithm to_algorithm(std::string_view name) {
  for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
    if (name == kAlgorithms[i]) return static_cast<Algorithm>(i);
  }
  fail("algorithm: got '", name, "', expected 'sgd', 'adam' or 'lamb'");
}

void bind_settings(nb::module_& m) {
  nb::class_<WeightSettings>(m, "WeightSettings", "How one weight is updated.")
      .def(nb::init<>())
      .def_rw("rate_scale", &WeightSettings::rate_scale)
      .def_rw("alpha", &WeightSettings::alpha)
      .def_rw("beta", &WeightSettings::beta)
      .def_rw("epsilon", &WeightSettings::epsilon)
      .def_rw("weight_decay", &WeightSettings::weight_decay)
      .def_rw("correct_bias", &WeightSettings::correct_bias)
      .def_rw("decays_after", &WeightSettings::decays_after)
      .def_rw("decays_gradient", &WeightSettings::decays_gradient)
      .def_rw("max_norm", &WeightSettings::max_norm)
      .def_rw("ratio_min", &WeightSettings::ratio_min)
      .def_rw("ratio_max", &WeightSettings::ratio_max)
      .def("__repr__", &describe_fields);
  nb::class_<TrainerOptions>(m, "TrainerOptions")
      .def(nb::init<>())
      .def_prop_rw(
          "algorithm", [](const TrainerOptions& o) { return kAlgorithms[static_cast<std::size_t>(o.algorithm)]; },
          [](TrainerOptions& o, std::string_view name) { o.algorithm = to_algorithm(name); })
      .def_rw("defaults", &TrainerOptions::defaults)
      .def_rw("by_weight", &TrainerOptions::by_weight)
      .def_rw("accumulation_steps", &TrainerOptions::accumulation_steps)
      .def_rw("clips_gradients", &TrainerOptions::clips_gradients)
      .def_rw("skips_non_finite", &TrainerOptions::skips_non_finite)
      .def_rw("scales_loss", &TrainerOptions::scales_loss)
      .def_prop_rw(
          "communicator", [](const TrainerOptions& o) { return o.communicator; },
          [](TrainerOptions& o, nb::handle h) { o.communicator = to_communicator(h); },
          nb::for_getter(nb::sig("def communicator(self) -> Communicator | None")), nb::for_setter(nb::arg().none()))
      .def_rw("parallel", &TrainerOptions::parallel)
      .def_prop_rw(
          "zero_stage", [](const TrainerOptions& o) { return o.parallel.zero_stage; },
          [](TrainerOptions& o, int stage) { o.parallel.zero_stage = stage; })
      .def_rw("session", &TrainerOptions::session)
      .def("__repr__", &describe_fields);
}

std::vector<Tensor> tensors_of(std::vector<RuntimeValue> values) {
  std::vector<Tensor> tensors;
  for (RuntimeValue& v : values) tensors.push_back(std::move(v.tensor));
  return tensors;
}

std::tuple<std::vector<Tensor>, bool, bool> train_step(Trainer& trainer, std::size_t program, const nb::list& inputs,
                                                       double rate) {
  std::vector<RuntimeValue> values = to_values(inputs);
  const Unlocked unlocked;
  Trainer::Result result = trainer.train_step(program, values, rate);
  values.clear();
  return {tensors_of(std::move(result.outputs)), result.updated, result.all_finite};
}

std::vector<Tensor> eval_step(Trainer& trainer, std::size_t program, const nb::list& inputs) {
  std::vector<RuntimeValue> values = to_values(inputs);
  const Unlocked unlocked;
  std::vector<Tensor> results = tensors_of(trainer.eval_step(program, values));
  values.clear();
  return results;
}

PlanReport plan(const Trainer& trainer, std::size_t program, const nb::list& inputs) {
  std::vector<RuntimeValue> values = to_values(inputs);
  const Unlocked unlocked;
  PlanReport report = trainer.plan(program, values);
  values.clear();
  return report;
}

using Names = std::vector<std::string>;

std::size_t add_model(Trainer& trainer, nb::handle model, std::string loss, Names outputs,
                      std::map<std::string, std::string> assigned) {
  const TrainerModel described{to_source(model), std::move(loss), std::move(outputs), std::move(assigned)};
  const Unlocked unlocked;
  return trainer.add_model(described);
}

std::size_t add_eval_model(Trainer& trainer, nb::handle model, Names outputs, bool to_inference) {
  const TrainerModel described{to_source(model), "", std::move(outputs), {}};
  const Unlocked unlocked;
  return trainer.add_eval_model(described, to_inference);
}

std::shared_ptr<CheckpointState> state_of(nb::handle model, const std::string& loss, const Names& frozen) {
  const ModelSource source = to_source(model);
  const Unlocked unlocked;
  return Trainer::state_of(source, loss, frozen);
}

}  // namespace

void bind_trainer(nb::module_& m) {
  bind_settings(m);
  nb::class_<Trainer>(m, "Trainer", "Forward, loss, backward, accumulation, clipping and optimizer in one call.")
      .def(nb::init<std::shared_ptr<CheckpointState>, const TrainerOptions&>(), nb::arg("state"), nb::arg("options"))
      .def_static("state_of", &state_of, nb::arg("model"), nb::arg("loss"), nb::arg("frozen") = Names{},
                  "The weights of a model, those that its loss depends on.")
      .def("add_model", &add_model, nb::arg("model"), nb::arg("loss"), nb::arg("outputs"),
           nb::arg("assigned") = std::map<std::string, std::string>{})
      .def("add_eval_model", &add_eval_model, nb::arg("model"), nb::arg("outputs"), nb::arg("to_inference") = true)
      .def("inputs", &Trainer::inputs, nb::arg("program"))
      .def("eval_inputs", &Trainer::eval_inputs, nb::arg("program"))
      .def_prop_ro("trained", &Trainer::trained)
      .def("train_step", &train_step, nb::arg("program"), nb::arg("inputs"), nb::arg("rate"),
           "Outputs, whether weights were updated, whether all gradients were finite.")
      .def("eval_step", &eval_step, nb::arg("program"), nb::arg("inputs"))
      .def_prop_rw("steps", &Trainer::steps, &Trainer::set_steps)
      .def_prop_rw("updates", &Trainer::updates, &Trainer::set_updates)
      .def_prop_rw("loss_scale", &Trainer::loss_scale, &Trainer::set_loss_scale)
      .def_prop_ro("last_norm", &Trainer::last_norm)
      .def("drop_gradients", &Trainer::drop_gradients)
      .def("resume_random", &Trainer::resume_random)
      .def("gather_optimizer_state", &Trainer::gather_optimizer_state, NoGil())
      .def("plan", &plan, nb::arg("program"), nb::arg("inputs"))
      .def("pass_reports", &Trainer::pass_reports, nb::arg("program"))
      .def("take_profile", &Trainer::take_profile, nb::arg("program"));
}
