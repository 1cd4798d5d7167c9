#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>

#include "backpass/backpass.h"
#include "onnx_io/writer.hpp"
#include "onnx_io_models.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

/// Two ranks that always have the same: sums are doubles.
struct Twins {
  int sums = 0, waits = 0, status = 0;

  BpCommunicator table() {
    return {.context = this,
            .rank = 1,
            .size = 2,
            .broadcast = [](void*, void*, int64_t, BpDType, int) { return 0; },
            .start_allreduce =
                [](void* context, void* data, int64_t count, BpDType dtype) {
                  auto& self = *static_cast<Twins*>(context);
                  ++self.sums;
                  if (dtype != BP_FLOAT32) return 7;
                  for (int64_t i = 0; i < count; ++i) static_cast<float*>(data)[i] *= 2;
                  return self.status;
                },
            .wait = [](void* context) { return ++static_cast<Twins*>(context)->waits, 0; },
            .allgather =
                [](void*, const void* mine, int64_t count, BpDType dtype, void* all) {
                  const std::size_t bytes = byte_size(static_cast<DType>(dtype), count);
                  std::memcpy(all, mine, bytes);
                  std::memcpy(static_cast<std::byte*>(all) + bytes, mine, bytes);
                  return 0;
                },
            .reduce_scatter = nullptr};
  }
};

class CCommunicator : public testing::Test {
 protected:
  void SetUp() override { onnx_io::write_file(path_, onnx_io::write_model(regression_model())); }
  void TearDown() override {
    bp_release_trainer(trainer_);
    bp_release_checkpoint(state_);
  }

  Floats train(const BpCommunicator* communicator) {
    const BpParallelOptions parallel{.bucket_bytes = 1, .sends_late = 0, .has_own_statistics = 0, .zero_stage = 0};
    BpTrainerOptions options{};
    options.algorithm = BP_SGD;
    options.communicator = communicator;
    options.parallel = &parallel;
    EXPECT_EQ(bp_get_weights_of_model(path_.c_str(), "loss", nullptr, 0, &state_), BP_OK) << bp_last_error();
    EXPECT_EQ(bp_create_trainer(state_, &options, &trainer_), BP_OK) << bp_last_error();
    const char* output = "loss";
    size_t program = 0;
    status_ = bp_trainer_add_model(trainer_, path_.c_str(), "loss", &output, 1, &program);
    BpTensor *x = nullptr, *t = nullptr, *loss = nullptr;
    std::array<float, 4> xs{1, 2, 3, 4};
    std::array<float, 2> ts{1, 0};
    const std::array<int64_t, 2> x_dims{2, 2}, t_dims{2, 1};
    bp_create_tensor(BP_FLOAT32, x_dims.data(), 2, xs.data(), &x);
    bp_create_tensor(BP_FLOAT32, t_dims.data(), 2, ts.data(), &t);
    const std::array<const BpTensor*, 2> inputs{x, t};
    status_ = bp_trainer_train_step(trainer_, program, inputs.data(), 2, 0.1, &loss, 1, nullptr);
    BpTensor* w = nullptr;
    bp_get_parameter(state_, "w", &w);
    void* data = nullptr;
    bp_tensor_data(w, &data);
    const Floats found(static_cast<float*>(data), static_cast<float*>(data) + 2);
    for (BpTensor* tensor : {x, t, loss, w}) bp_release_tensor(tensor);
    return found;
  }

  onnx_io::TemporaryFolder folder_;  // tests run side by side
  std::filesystem::path path_ = folder_ / "model.onnx";
  BpCheckpoint* state_ = nullptr;
  BpTrainer* trainer_ = nullptr;
  BpStatus status_ = BP_OK;
};

TEST_F(CCommunicator, FunctionsOfATableAddUpGradients) {
  const Floats alone = train(nullptr);
  bp_release_trainer(trainer_);
  bp_release_checkpoint(state_);
  Twins twins;
  const BpCommunicator table = twins.table();
  EXPECT_EQ(train(&table), alone);  // twice the gradient, over two
  EXPECT_EQ(status_, BP_OK) << bp_last_error();
  EXPECT_EQ(twins.sums, 2);
  EXPECT_EQ(twins.waits, 1);
}

TEST_F(CCommunicator, WhatAFunctionRefusesIsToldWithItsNumber) {
  Twins twins;
  twins.status = 5;
  const BpCommunicator table = twins.table();
  train(&table);
  EXPECT_EQ(status_, BP_INVALID_INPUT);
  EXPECT_NE(std::string(bp_last_error()).find("[allreduce] rank 1 of 2"), std::string::npos) << bp_last_error();
  EXPECT_NE(std::string(bp_last_error()).find("the communicator gave 5"), std::string::npos) << bp_last_error();
}

TEST_F(CCommunicator, NeedsAllItsFunctions) {
  Twins twins;
  BpCommunicator table = twins.table();
  table.allgather = nullptr;
  BpTrainerOptions options{};
  options.communicator = &table;
  ASSERT_EQ(bp_get_weights_of_model(path_.c_str(), "loss", nullptr, 0, &state_), BP_OK);
  EXPECT_EQ(bp_create_trainer(state_, &options, &trainer_), BP_INVALID_INPUT);
  EXPECT_EQ(std::string(bp_last_error()), "allgather: got NULL, expected a pointer");
  EXPECT_EQ(bp_set_communicator(nullptr, &table, nullptr), BP_INVALID_INPUT);
  EXPECT_EQ(bp_set_exchanges(nullptr, 1), BP_INVALID_INPUT);
  EXPECT_EQ(bp_gather_optimizer_state(nullptr), BP_INVALID_INPUT);
  EXPECT_EQ(bp_trainer_gather_optimizer_state(nullptr), BP_INVALID_INPUT);
}

}  // namespace
}  // namespace backpass
