#include "training/artifact_checks.hpp"

#include <algorithm>
#include <set>

#include "support/printable.hpp"

namespace backpass {
namespace {

void check_places(const CheckpointState& state, const StepModel& training, const StepModel* eval) {
  const std::vector<Parameter>& all = state.parameters();
  const bool trains = std::any_of(all.begin(), all.end(), [](const Parameter& p) { return p.requires_grad; });
  if (trains && training.trainable().empty()) {
    fail("training model: got a model without gradients, expected some, as the checkpoint has parameters to train; ",
         "is it the eval model?");
  }
  if (eval != nullptr && !eval->trainable().empty()) {
    fail("eval model: got a model with gradients, expected none; is it the training model?");
  }
}

std::string misfits(const CheckpointState& state, const StepModel& model, const char* which) {
  std::string problems;
  for (const ParameterInfo& p : model.parameter_infos()) {
    const Parameter& kept = state.parameter(p.name);
    if (kept.dtype == p.dtype && (state.is_nominal() || kept.tensor.dims() == p.dims)) continue;
    problems += concat("\nparameter ", printable(p.name), ": got ", name_of(kept.dtype),
                       state.is_nominal() ? "" : to_string(kept.tensor.dims()), " in the checkpoint, expected ",
                       name_of(p.dtype), to_string(p.dims), " as in the ", which, " model");
  }
  return problems;
}

std::string wrongly_trained(const CheckpointState& state, const StepModel& training) {
  std::string problems;
  for (const std::string& name : training.trainable()) {
    const bool is_known = state.has_parameter(name);
    if (is_known && state.parameter(name).requires_grad) continue;
    problems += concat(
        "\nparameter ", printable(name), ": the training model has a gradient for it, but it is ",
        is_known ? "frozen in the checkpoint" : "not in the checkpoint (for gradients of inputs use backpass::grad)");
  }
  return problems;
}

std::string unknown(const CheckpointState& state, const StepModel& training, const StepModel* eval) {
  std::string problems;
  std::set<std::string> declared(training.parameters().begin(), training.parameters().end());
  if (eval != nullptr) declared.insert(eval->parameters().begin(), eval->parameters().end());
  for (const Parameter& p : state.parameters()) {
    if (declared.contains(p.name)) continue;
    problems += concat("\nparameter ", printable(p.name), ": it is in the checkpoint, but not in the model");
  }
  return problems;
}

}  // namespace

/// Contents of the wrong file would be read as what they are not. A frozen parameter that the checkpoint lacks cannot
/// be told from an input of the user's.
void check_artifacts(const CheckpointState& state, const StepModel& training, const StepModel* eval) {
  check_places(state, training, eval);
  std::string problems = wrongly_trained(state, training) + unknown(state, training, eval);
  problems += misfits(state, training, "training");
  if (eval != nullptr) problems += misfits(state, *eval, "eval");
  if (!problems.empty()) fail("checkpoint: it does not fit the model; use the one made with it", problems);
}

void check_fit(const CheckpointState& state, const StepModel& model, const char* which) {
  const std::string problems = misfits(state, model, which);
  if (!problems.empty()) fail(problems.substr(1));
}

void check_optimized(const CheckpointState& state, const StepModel& training) {
  std::string problems;
  for (const std::string& name : training.trainable()) {
    const DType dtype = state.parameter(name).dtype;
    if (dtype == DType::float32 || dtype == DType::float64) continue;
    problems += concat("\nparameter '", name, "': got ", name_of(dtype),
                       ", expected float32 or float64, which optimizers update; store it so and cast it");
  }
  if (!problems.empty()) fail<Unsupported>(problems.substr(1));
}

}  // namespace backpass
