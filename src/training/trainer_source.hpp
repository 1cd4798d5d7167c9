// What a trainer makes of a model before it is planned.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backpass/trainer.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// The scalar that the loss is multiplied by where gradients are scaled: the last input of the user's.
inline constexpr std::string_view kLossScale = "backpass.loss_scale";

struct TrainerSource {
  onnx_io::ModelProto model;          ///< in the layout of model/training_graph.hpp, or an eval model
  std::vector<std::string> outputs;   ///< of it
  std::vector<std::size_t> returned;  ///< which of them the user gets
  struct Assignment {
    std::size_t output;
    std::string parameter;
  };
  std::vector<Assignment> assignments;
};

/// The training model of a model for the weights of the state that its loss depends on.
TrainerSource training_source(const TrainerModel& model, const CheckpointState& state, bool scales_loss);

TrainerSource eval_source(const TrainerModel& model, const CheckpointState& state, bool to_inference);

}  // namespace backpass
