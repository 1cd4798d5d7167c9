#include "backpass/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "expect_error.hpp"
#include "onnx_io/writer.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

struct Regressed {
  ModelSource model = ModelSource::from_bytes(onnx_io::write_model(regression_model()));
  Regression numbers;
  std::shared_ptr<CheckpointState> state = Trainer::state_of(model, "loss");
  Trainer trainer;
  std::size_t program;

  explicit Regressed(const TrainerOptions& options)
      : trainer(state, options), program(trainer.add_model({model, "loss", {"loss", "y"}, {}})) {}

  Trainer::Result step(double rate) {
    return trainer.train_step(program, std::vector<RuntimeValue>{numbers.x, numbers.t}, rate);
  }
  Floats weight(const char* name) const { return numbers_in(state->parameter(name).tensor); }
};

TrainerOptions descent() {
  TrainerOptions options;
  options.algorithm = Algorithm::sgd;
  return options;
}

TEST(Trainer, StepsDownTheGradient) {
  Regressed r(descent());
  const Trainer::Result result = r.step(0.125);
  EXPECT_EQ(numbers_in(result.outputs[0].tensor), Floats{6.25F});
  EXPECT_TRUE(result.updated);
  EXPECT_EQ(r.weight("w"), (Floats{1 - 0.125F * 10, -1 + 0.125F * 4.5F}));
  EXPECT_EQ(r.weight("b"), (Floats{0.5F - 0.125F * 3}));
  EXPECT_EQ(r.trainer.updates(), 1);
}

TEST(Trainer, AveragesWhatItAccumulates) {
  TrainerOptions options = descent();
  options.accumulation_steps = 2;
  Regressed r(options);
  EXPECT_FALSE(r.step(0.125).updated);
  EXPECT_EQ(r.weight("w"), (Floats{1, -1}));
  EXPECT_TRUE(r.step(0.125).updated);
  EXPECT_EQ(r.weight("w"), (Floats{1 - 0.125F * 10, -1 + 0.125F * 4.5F}));
  EXPECT_EQ(r.trainer.steps(), 2);
}

TEST(Trainer, BeginsAnAccumulationAnew) {
  TrainerOptions options = descent();
  options.accumulation_steps = 2;
  Regressed r(options);
  r.step(0.125);
  r.trainer.drop_gradients();
  EXPECT_FALSE(r.step(0.125).updated);
  EXPECT_TRUE(r.step(0.125).updated);
  EXPECT_EQ(r.weight("b"), (Floats{0.5F - 0.125F * 3}));
}

TEST(Trainer, ClipsByTheNormOfAllGradients) {
  TrainerOptions options = descent();
  options.clips_gradients = true;
  options.defaults.max_norm = 2;
  options.by_weight["b"] = options.defaults;
  options.by_weight["b"].max_norm = 100;
  Regressed r(options);
  r.step(1);
  const double norm = std::sqrt(10 * 10 + 4.5 * 4.5 + 3 * 3);
  EXPECT_NEAR(r.trainer.last_norm(), norm, 1e-6);
  EXPECT_NEAR(r.weight("w")[0], 1 - 10 * 2 / norm, 1e-6);
  EXPECT_EQ(r.weight("b"), (Floats{0.5F - 3}));
}

TEST(Trainer, ScaleOfTheLossLeavesNoTrace) {
  TrainerOptions options = descent();
  options.scales_loss = true;
  Regressed r(options);
  r.trainer.set_loss_scale(1024);
  const Trainer::Result result = r.step(0.125);
  EXPECT_EQ(numbers_in(result.outputs[0].tensor), Floats{6.25F});
  EXPECT_EQ(r.weight("b"), (Floats{0.5F - 0.125F * 3}));
  ASSERT_EQ(r.trainer.inputs(r.program).size(), 2U);
}

TEST(Trainer, RefusesBadNumbers) {
  Regressed r(descent());
  expect_error<InvalidInput>([&] { r.step(std::numeric_limits<double>::quiet_NaN()); }, {"learning rate: got nan"});
  expect_error<InvalidInput>([&] { r.trainer.set_loss_scale(0); }, {"loss_scale: got 0"});
  TrainerOptions options;
  options.accumulation_steps = 0;
  expect_error<InvalidInput>([&] { Trainer(r.state, options); }, {"accumulation_steps: got 0, expected 1 or more"});
}

TEST(Trainer, ProgramsTrainTheSameWeights) {
  Regressed r(descent());
  onnx_io::ModelProto other = regression_model();
  other.graph.node[1] = make_node("Identity", {"z"}, {"y"});
  const ModelSource source = ModelSource::from_bytes(onnx_io::write_model(other));
  expect_error<InvalidInput>(
      [&] {
        r.trainer.add_model({source, "loss", {"loss"}, {}});
      },
      {"weight 'b': this model does not train it"});
}

}  // namespace
}  // namespace backpass
