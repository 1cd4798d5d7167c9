#include "backpass/trainer.hpp"

#include "capi/handles.hpp"

using namespace backpass;
using namespace backpass::capi;

namespace {

Trainer& trainer_of(BpTrainer* t) { return *need(t, "trainer").trainer; }
const Trainer& trainer_of(const BpTrainer* t) { return *need(t, "trainer").trainer; }

WeightSettings to_settings(const BpWeightSettings& s) {
  return {.rate_scale = s.rate_scale,
          .alpha = s.alpha,
          .beta = s.beta,
          .epsilon = s.epsilon,
          .weight_decay = s.weight_decay,
          .correct_bias = s.correct_bias != 0,
          .decays_after = s.decays_after != 0,
          .max_norm = s.max_norm,
          .ratio_min = s.ratio_min,
          .ratio_max = s.ratio_max,
          .decays_gradient = s.decays_gradient != 0};
}

Algorithm to_algorithm(BpAlgorithm algorithm) {
  switch (algorithm) {
    case BP_ADAM:
      return Algorithm::adam;
    case BP_SGD:
      return Algorithm::sgd;
    case BP_LAMB:
      return Algorithm::lamb;
  }
  fail("algorithm: got ", static_cast<int>(algorithm), ", expected BP_ADAM, BP_SGD or BP_LAMB");
}

TrainerOptions to_trainer_options(const BpTrainerOptions* given) {
  TrainerOptions options;
  if (given == nullptr) return options;
  options.algorithm = to_algorithm(given->algorithm);
  if (given->defaults != nullptr) options.defaults = to_settings(*given->defaults);
  if (given->by_weight_count > 0) need(given->by_weight, "by_weight");
  for (size_t i = 0; i < given->by_weight_count; ++i) {
    const BpNamedSettings& named = given->by_weight[i];
    options.by_weight.emplace(&need(named.weight, "weight"), to_settings(named.settings));
  }
  if (given->accumulation_steps != 0) options.accumulation_steps = given->accumulation_steps;
  options.clips_gradients = given->clips_gradients != 0;
  options.skips_non_finite = given->skips_non_finite != 0;
  options.scales_loss = given->scales_loss != 0;
  options.session = to_options(given->session);
  options.communicator = to_communicator(given->communicator);
  options.parallel = to_parallel_options(given->parallel);
  return options;
}

TrainerModel to_model(const char* model, const char* loss, const char* const* outputs, size_t count) {
  return {.model = ModelSource(&need(model, "model")),
          .loss = loss == nullptr ? "" : loss,
          .outputs = to_names(outputs, count, "outputs"),
          .assigned = {}};
}

/// A step changes weights: what is wrong with its outputs is said before.
void check_outputs(const std::vector<std::size_t>& counts, size_t program, BpTensor* const* outputs, size_t given) {
  if (program < counts.size() && counts[program] != given) {
    fail("outputs: got ", given, " tensors, expected ", counts[program]);
  }
  if (given > 0) need(outputs, "outputs");
  for (size_t i = 0; i < given; ++i) {
    if (outputs[i] != nullptr) fail("outputs: got a tensor at ", i, ", expected NULL, since results are new tensors");
  }
}

}  // namespace

BpStatus bp_get_default_settings(BpWeightSettings* out) {
  return guarded([&] {
    const WeightSettings d;
    need(out, "out") = {d.rate_scale,   d.alpha,           d.beta,     d.epsilon,   d.weight_decay, d.correct_bias,
                        d.decays_after, d.decays_gradient, d.max_norm, d.ratio_min, d.ratio_max};
  });
}

BpStatus bp_get_weights_of_model(const char* model, const char* loss, const char* const* frozen, size_t frozen_count,
                                 BpCheckpoint** out) {
  return guarded([&] {
    need(out, "out");
    const std::vector<std::string> names = to_names(frozen, frozen_count, "frozen");
    auto state = Trainer::state_of(ModelSource(&need(model, "model")), &need(loss, "loss"), names);
    *out = new BpCheckpoint{std::move(state), std::nullopt};
  });
}

BpStatus bp_create_trainer(BpCheckpoint* state, const BpTrainerOptions* options, BpTrainer** out) {
  return guarded([&] {
    need(out, "out");
    auto trainer = std::make_unique<Trainer>(need(state, "state").state, to_trainer_options(options));
    *out = new BpTrainer{std::move(trainer), {}, {}};
  });
}

void bp_release_trainer(BpTrainer* trainer) { delete trainer; }

BpStatus bp_trainer_add_model(BpTrainer* trainer, const char* model, const char* loss, const char* const* outputs,
                              size_t output_count, size_t* program) {
  return guarded([&] {
    need(program, "program");
    need(loss, "loss");
    *program = trainer_of(trainer).add_model(to_model(model, loss, outputs, output_count));
    trainer->outputs.push_back(output_count);
  });
}

BpStatus bp_trainer_add_eval_model(BpTrainer* trainer, const char* model, const char* const* outputs,
                                   size_t output_count, size_t* program) {
  return guarded([&] {
    need(program, "program");
    *program = trainer_of(trainer).add_eval_model(to_model(model, nullptr, outputs, output_count));
    trainer->eval_outputs.push_back(output_count);
  });
}

BpStatus bp_trainer_get_input_count(const BpTrainer* trainer, size_t program, size_t* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).inputs(program).size(); });
}

BpStatus bp_trainer_get_input_name(const BpTrainer* trainer, size_t program, size_t index, const char** out) {
  return guarded([&] { give_name(trainer_of(trainer).inputs(program), index, out); });
}

BpStatus bp_trainer_get_eval_input_count(const BpTrainer* trainer, size_t program, size_t* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).eval_inputs(program).size(); });
}

BpStatus bp_trainer_get_eval_input_name(const BpTrainer* trainer, size_t program, size_t index, const char** out) {
  return guarded([&] { give_name(trainer_of(trainer).eval_inputs(program), index, out); });
}

BpStatus bp_trainer_train_step(BpTrainer* trainer, size_t program, const BpTensor* const* inputs, size_t input_count,
                               double rate, BpTensor** outputs, size_t output_count, BpTrainResult* result) {
  return guarded([&] {
    Trainer& t = trainer_of(trainer);
    const std::vector<RuntimeValue> values = to_values(t.inputs(program), inputs, input_count);
    check_outputs(trainer->outputs, program, outputs, output_count);
    const Trainer::Result done = t.train_step(program, values, rate);
    if (result != nullptr) *result = {done.updated, done.all_finite};
    give_out(done.outputs, outputs, output_count);
  });
}

BpStatus bp_trainer_eval_step(BpTrainer* trainer, size_t program, const BpTensor* const* inputs, size_t input_count,
                              BpTensor** outputs, size_t output_count) {
  return guarded([&] {
    Trainer& t = trainer_of(trainer);
    const std::vector<RuntimeValue> values = to_values(t.eval_inputs(program), inputs, input_count);
    check_outputs(trainer->eval_outputs, program, outputs, output_count);
    give_out(t.eval_step(program, values), outputs, output_count);
  });
}

BpStatus bp_trainer_drop_gradients(BpTrainer* trainer) {
  return guarded([&] { trainer_of(trainer).drop_gradients(); });
}

BpStatus bp_trainer_gather_optimizer_state(BpTrainer* trainer) {
  return guarded([&] { trainer_of(trainer).gather_optimizer_state(); });
}

BpStatus bp_trainer_get_steps(const BpTrainer* trainer, int64_t* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).steps(); });
}

BpStatus bp_trainer_set_steps(BpTrainer* trainer, int64_t steps) {
  return guarded([&] { trainer_of(trainer).set_steps(steps); });
}

BpStatus bp_trainer_get_updates(const BpTrainer* trainer, int64_t* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).updates(); });
}

BpStatus bp_trainer_set_updates(BpTrainer* trainer, int64_t updates) {
  return guarded([&] { trainer_of(trainer).set_updates(updates); });
}

BpStatus bp_trainer_get_loss_scale(const BpTrainer* trainer, double* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).loss_scale(); });
}

BpStatus bp_trainer_set_loss_scale(BpTrainer* trainer, double scale) {
  return guarded([&] { trainer_of(trainer).set_loss_scale(scale); });
}

BpStatus bp_trainer_get_last_norm(const BpTrainer* trainer, double* out) {
  return guarded([&] { need(out, "out") = trainer_of(trainer).last_norm(); });
}
