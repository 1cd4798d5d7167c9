// Checkpoints: kept whole by saving and loading, in one file and in two.
#include "backpass/checkpoint.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "onnx_io/checkpoint_file.hpp"
#include "onnx_io_models.hpp"

namespace backpass {
namespace {

using onnx_io::TemporaryFolder;

Tensor filled(Dims dims, float value) {
  Tensor t(DType::float32, std::move(dims));
  std::fill_n(t.as<float>(), t.size(), value);
  return t;
}

/// Every number in it is `value`: a mixture of two such states shows.
CheckpointState uniform_state(float value) {
  CheckpointState state;
  state.add_parameter("w", filled({40, 50}, value));
  state.add_parameter("b", filled({3}, value), /*requires_grad=*/false);
  OptimizerGroup group;
  group.step = static_cast<std::int64_t>(value);
  group.momentums["w"]["momentum0"] = filled({40, 50}, value);
  state.optimizer_groups().push_back(std::move(group));
  state.set_property("value", value);
  return state;
}

void expect_uniform(const CheckpointState& state) {
  const float value = std::get<float>(state.property("value"));
  const auto check = [&](const Tensor& t) {
    for (const float v : t.values<float>()) ASSERT_EQ(v, value);
  };
  for (const Parameter& p : state.parameters()) check(p.tensor);
  for (const OptimizerGroup& group : state.optimizer_groups()) {
    EXPECT_EQ(static_cast<float>(group.step), value);
    for (const auto& [name, momentums] : group.momentums) {
      for (const auto& [momentum, tensor] : momentums) check(tensor);
    }
  }
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Checkpoint, SurvivesMemoryOfAnyAlignment) {
  const std::string bytes = uniform_state(3).to_bytes(true);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    const std::string shifted = std::string(shift, 'x') + bytes;
    const CheckpointState state = CheckpointState::load(bytes_of(shifted).subspan(shift));
    expect_uniform(state);
    EXPECT_EQ(state.to_bytes(true), bytes);
  }
}

TEST(Checkpoint, EmptyStateIsAState) {
  const CheckpointState state = CheckpointState::load(bytes_of(CheckpointState().to_bytes(true)));
  EXPECT_TRUE(state.parameters().empty());
  EXPECT_FALSE(state.is_nominal());
  EXPECT_EQ(state.parameter_count(), 0);
}

TEST(Checkpoint, TensorsAreShared) {
  Tensor w = filled({2}, 1);
  CheckpointState state;
  state.add_parameter("w", w);
  state.set_parameter("w", filled({2}, 5));
  EXPECT_EQ(w.values<float>()[1], 5);
  EXPECT_EQ(state.parameter("w").tensor.data(), w.data());
}

TEST(Checkpoint, ResumeStateIsForgottenWhenTheOptimizerWentOnElsewhere) {
  CheckpointState state = uniform_state(3);
  state.resume() = {
      .learning_rate = 0.5F, .seed = 1, .random_counter = 9, .scheduler = "linear", .scheduler_state = {}};
  CheckpointState loaded = CheckpointState::load(bytes_of(state.to_bytes(true)));
  EXPECT_EQ(loaded.resume().learning_rate, 0.5F);
  // What another program does that keeps all properties and trains on.
  const Properties kept = onnx_io::to_properties(state.resume(), true, 3);
  const ResumeState later = onnx_io::to_resume_state(kept, 4, "");
  EXPECT_FALSE(later.learning_rate);
  EXPECT_EQ(later.scheduler, "");
  EXPECT_EQ(later.random_counter, 9U);
}

TEST(Checkpoint, AboveTheThresholdGoesToTwoFiles) {
  const TemporaryFolder folder;
  const auto file = folder / "c";
  const CheckpointState state = uniform_state(1);  // 8012 bytes of parameters, 8000 of momentums
  onnx_io::save_checkpoint(state, file, true, 16012 + 1);
  EXPECT_FALSE(std::filesystem::exists(onnx_io::data_file_of(file)));
  onnx_io::save_checkpoint(state, file, true, 16012);
  EXPECT_EQ(std::filesystem::file_size(onnx_io::data_file_of(file)), 8000U);  // the small one stays inside
  expect_uniform(CheckpointState::load(file));
  // Momentums follow only when they would not fit otherwise.
  onnx_io::save_checkpoint(state, file, true, 8000);
  EXPECT_LT(std::filesystem::file_size(file), 2000U);
  const CheckpointState loaded = CheckpointState::load(file);
  expect_uniform(loaded);
  EXPECT_EQ(loaded.optimizer_groups().at(0).momentums.size(), 1U);
}

TEST(Checkpoint, TwoSaversAndAReaderNeverSeeAMixture) {
  const TemporaryFolder folder;
  const auto file = folder / "c";
  CheckpointState first = uniform_state(0);
  first.use_external_data(true);
  first.save(file, true);
  std::atomic<bool> is_done = false;
  const auto save_some = [&](float from) {
    for (int i = 0; i < 40; ++i) {
      CheckpointState state = uniform_state(from + static_cast<float>(i));
      state.use_external_data(i % 7 != 6);  // at times back to one file
      state.save(file, true);
    }
  };
  std::thread one([&] { save_some(100); });
  std::thread two([&] { save_some(200); });
  std::thread reader([&] {
    while (!is_done) expect_uniform(CheckpointState::load(file));
  });
  one.join();
  two.join();
  is_done = true;
  reader.join();
  expect_uniform(CheckpointState::load(file));
}

TEST(Checkpoint, LeftoversOfKilledSaversAreRemovedAndFilesOfLivingOnesAreNot) {
  const TemporaryFolder folder;
  onnx_io::write_file(folder / ".c.123.4.tmp", "left");
  onnx_io::write_file(folder / ".c.note.tmp", "mine");
  onnx_io::write_file(folder / ".cd.123.4.tmp", "another's");
  uniform_state(1).save(folder / "c");
  EXPECT_FALSE(std::filesystem::exists(folder / ".c.123.4.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".c.note.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".cd.123.4.tmp"));
}

}  // namespace
}  // namespace backpass
