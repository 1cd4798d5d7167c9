// Whether the files of a training session belong together: found out before the first step, all problems at once.
#pragma once

#include "backpass/checkpoint.hpp"
#include "training/step_model.hpp"

namespace backpass {

/// `eval` may be null. InvalidInput when one is given in the other's place, or the checkpoint is that of another model.
void check_artifacts(const CheckpointState& state, const StepModel& training, const StepModel* eval);

/// InvalidInput when parameters are of another type or shape than the model, "training" or "eval", declares them.
void check_fit(const CheckpointState& state, const StepModel& model, const char* which);

/// Unsupported when an optimizer cannot update parameters of these types: a step that fails in the middle would leave
/// some of them updated.
void check_optimized(const CheckpointState& state, const StepModel& training);

}  // namespace backpass
