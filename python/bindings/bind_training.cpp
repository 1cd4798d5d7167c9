#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "backpass/training.hpp"
#include "bindings.hpp"
#include "support/random_seed.hpp"
#include "training_values.hpp"

namespace nb = nanobind;
using namespace backpass;

ModelSource to_source(nb::handle h) {
  if (h.is_none()) return {};
  if (nb::isinstance<nb::bytes>(h)) {
    auto b = nb::cast<nb::bytes>(h);
    return ModelSource::from_bytes({b.c_str(), b.size()});
  }
  return nb::cast<std::filesystem::path>(h);
}

std::vector<RuntimeValue> to_values(const nb::list& items) {
  std::vector<RuntimeValue> values;
  for (nb::handle item : items) {
    if (item.is_none()) {
      values.emplace_back();
    } else if (nb::isinstance<Tensor>(item)) {
      values.emplace_back(nb::cast<Tensor>(item));
    } else {
      fail("input ", values.size(), ": got a list, expected an array");
    }
  }
  return values;
}

namespace {

template <std::vector<RuntimeValue> (TrainingSession::*Step)(std::span<const RuntimeValue>)>
std::vector<Tensor> run(TrainingSession& session, const nb::list& inputs) {
  std::vector<RuntimeValue> values = to_values(inputs);
  const Unlocked unlocked;
  std::vector<Tensor> results;
  for (RuntimeValue& v : (session.*Step)(values)) results.push_back(std::move(v.tensor));
  values.clear();
  return results;
}

template <PlanReport (TrainingSession::*Plan)(std::span<const RuntimeValue>) const>
PlanReport plan(const TrainingSession& session, const nb::list& inputs) {
  std::vector<RuntimeValue> values = to_values(inputs);
  const Unlocked unlocked;
  PlanReport report = (session.*Plan)(values);
  values.clear();
  return report;
}

void make(TrainingSession* self, std::shared_ptr<CheckpointState> state, nb::handle training, nb::handle eval,
          const SessionOptions& options) {
  TrainingArtifacts artifacts{to_source(training), to_source(eval), {}};
  const Unlocked unlocked;
  new (self) TrainingSession(std::move(state), artifacts, options);
}

}  // namespace

void bind_training(nb::module_& m) {
  nb::class_<TrainingSession>(m, "TrainingSession", "A training model, with an eval model and an optimizer if wanted.")
      .def("__init__", &make, nb::arg("state"), nb::arg("training"), nb::arg("eval").none(), nb::arg("options"))
      .def(
          "add_optimizer", [](TrainingSession& s, nb::handle model) { s.add_optimizer(to_source(model)); },
          nb::arg("model"))
      .def_prop_ro("has_eval_model", &TrainingSession::has_eval_model)
      .def_prop_ro("has_optimizer", &TrainingSession::has_optimizer)
      .def("inputs", &TrainingSession::inputs, nb::arg("training") = true)
      .def("outputs", &TrainingSession::outputs, nb::arg("training") = true)
      .def("train_step", &run<&TrainingSession::train_step>, nb::arg("inputs"))
      .def("train_and_update", &run<&TrainingSession::train_and_update>, nb::arg("inputs"))
      .def("eval_step", &run<&TrainingSession::eval_step>, nb::arg("inputs"))
      .def("lazy_reset_grad", &TrainingSession::lazy_reset_grad)
      .def("gradient", &TrainingSession::gradient, nb::arg("parameter"))
      .def("optimizer_step", &TrainingSession::optimizer_step, NoGil())
      .def_prop_ro("optimizer_steps", &TrainingSession::optimizer_steps)
      .def_prop_rw("learning_rate", &TrainingSession::learning_rate, &TrainingSession::set_learning_rate)
      .def("register_linear_scheduler", &TrainingSession::register_linear_scheduler, nb::arg("warmup"),
           nb::arg("total"), nb::arg("initial_rate"))
      .def("scheduler_step", &TrainingSession::scheduler_step)
      .def("set_communicator", &TrainingSession::set_communicator, nb::arg("communicator"), nb::arg("options"), NoGil())
      .def("set_exchanges", &TrainingSession::set_exchanges, nb::arg("exchanges"))
      .def("gradient_buckets", &TrainingSession::gradient_buckets)
      .def("gather_optimizer_state", &TrainingSession::gather_optimizer_state, NoGil())
      .def("parameters_size", &TrainingSession::parameters_size, nb::arg("trainable_only") = true)
      .def("contiguous_parameters", &TrainingSession::contiguous_parameters, nb::arg("trainable_only") = false)
      .def("copy_to_parameters", &TrainingSession::copy_to_parameters, nb::arg("buffer"),
           nb::arg("trainable_only") = true)
      .def(
          "export_model_for_inferencing",
          [](const TrainingSession& s, const std::filesystem::path& path, const std::vector<std::string>& outputs) {
            s.export_model_for_inferencing(path, outputs);
          },
          nb::arg("path"), nb::arg("outputs"), NoGil())
      .def("export_model_for_training", &TrainingSession::export_model_for_training, nb::arg("path"), NoGil())
      .def("plan", &plan<&TrainingSession::plan>, nb::arg("inputs"))
      .def("plan_update", &plan<&TrainingSession::plan_update>, nb::arg("inputs"))
      .def("pass_reports", &TrainingSession::pass_reports)
      .def("data_report", &TrainingSession::data_report)
      .def(
          "execution_model", [](const TrainingSession& s) { return to_bytes(s.execution_model()); },
          "The training model after rewriting: parameters are inputs, gradients follow the outputs.")
      .def("take_profile", &TrainingSession::take_profile);
  m.def("set_seed", &set_seed, nb::arg("seed"),
        "Restarts the random numbers of everything that was not restored from a checkpoint.");
  m.def("is_seeded", &is_random_seed_set, "Whether set_seed was called.");
}
