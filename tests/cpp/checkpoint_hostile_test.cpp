// Damaged and hostile checkpoints: refused with a message that names file and parameter, never a crash.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "backpass/checkpoint.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "onnx_io/checkpoint_schema.hpp"
#include "onnx_io_models.hpp"

namespace backpass::onnx_io {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
template <class T>
using At = flatbuffers::Offset<T>;
template <class T>
using Tables = std::vector<At<T>>;

std::string finish(Builder& b, At<odtc::ModuleState> module, Tables<odtc::OptimizerGroup> groups = {},
                   At<odtc::PropertyBag> bag = 0, std::int32_t version = kCheckpointVersion) {
  const auto groups_at = b.CreateVector(groups);
  odtc::FinishCheckpointBuffer(b, odtc::CreateCheckpoint(b, version, module, groups_at, bag));
  return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
}

At<odtc::Tensor> tensor(Builder& b, const char* name, std::vector<std::int64_t> dims = {2}, int type = 1,
                        std::vector<std::uint8_t> raw = std::vector<std::uint8_t>(8), std::int64_t external = -1) {
  return odtc::CreateTensorDirect(b, name, nullptr, &dims, type, &raw, external);
}

At<odtc::ModuleState> module(Builder& b, Tables<odtc::Tensor> trained, Tables<odtc::Tensor> frozen = {},
                             bool external = false) {
  return odtc::CreateModuleStateDirect(b, &trained, &frozen, false, external);
}

/// A checkpoint whose only parameter is "w".
std::string with_tensor(std::vector<std::int64_t> dims, int type, std::vector<std::uint8_t> raw,
                        std::int64_t external = -1, bool declares_external = false) {
  Builder b;
  return finish(b, module(b, {tensor(b, "w", std::move(dims), type, std::move(raw), external)}, {}, declares_external));
}

/// "w" of two floats, and a group with these states.
std::string with_states(const std::function<Tables<odtc::ParameterOptimizerState>(Builder&)>& make) {
  Builder b;
  const auto state = module(b, {tensor(b, "w")});
  const auto states = make(b);
  const auto group = odtc::CreateOptimizerGroupDirect(b, "group0", 1, 0, &states);
  return finish(b, state, {group});
}

CheckpointState load(const std::string& bytes) { return CheckpointState::load(std::as_bytes(std::span(bytes))); }

template <class Exception = InvalidInput>
std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no exception";
}

template <class Exception = InvalidInput>
void expect_refused(const std::string& bytes, const std::string& message) {
  EXPECT_EQ(message_of<Exception>([&] { load(bytes); }).substr(0, message.size()), message);
}

/// Loads, or throws Error.
void load_whatever(const std::string& bytes) {
  try {
    load(bytes).to_bytes(true);
  } catch (const Error&) {
  }
}

std::string good_bytes() {
  CheckpointState state;
  state.add_parameter("weight", Tensor::ints(std::vector<std::int64_t>{1, 2, 3}));
  state.add_parameter("bias", Tensor::scalar_float(1), false);
  OptimizerGroup group;
  group.momentums["weight"]["momentum0"] = Tensor::ints(std::vector<std::int64_t>{4, 5, 6});
  state.optimizer_groups().push_back(std::move(group));
  state.set_property("text", "value");
  state.set_property("number", 1.0F);
  state.resume().learning_rate = 0.1F;
  return state.to_bytes(true);
}

TEST(CheckpointHostile, EveryTruncationIsHandled) {
  const std::string bytes = good_bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) load_whatever(bytes.substr(0, size));
  expect_refused("", "[checkpoint] got 0 bytes, expected a checkpoint");
  expect_refused(bytes.substr(0, bytes.size() / 2), "[checkpoint] the file is damaged");
}

TEST(CheckpointHostile, EveryChangedByteIsHandled) {
  const std::string bytes = good_bytes();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x04, 0x10, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      load_whatever(changed);
    }
  }
}

TEST(CheckpointHostile, OtherFilesAndVersions) {
  expect_refused(std::string("\x08\x00\x00\x00ORTM", 8) + std::string(64, '\0'),
                 "[checkpoint] got a file with identifier 'ORTM', expected 'ODTC'");
  for (const int version : {0, 1, 3, -1}) {
    Builder b;
    expect_refused(finish(b, module(b, {}), {}, 0, version), concat("[checkpoint] version: got ", version));
  }
}

TEST(CheckpointHostile, MissingLists) {
  Builder b;
  const Tables<odtc::Tensor> none;
  expect_refused(finish(b, odtc::CreateModuleState(b, 0, b.CreateVector(none))),
                 "[checkpoint] the list of trained parameters is missing");
  Builder c;
  expect_refused(finish(c, odtc::CreateModuleState(c, c.CreateVector(none), 0)),
                 "[checkpoint] the list of frozen parameters is missing");
}

TEST(CheckpointHostile, TensorsThatAreNot) {
  constexpr std::int64_t large = std::numeric_limits<std::int64_t>::max();
  const std::string w = "[checkpoint] parameter 'w': ";
  expect_refused(with_tensor({3}, 1, std::vector<std::uint8_t>(8)), w + "data length: got 8, expected 12 (float32[3])");
  expect_refused(with_tensor({}, 1, {}), w + "data length: got 0, expected 4");
  expect_refused(with_tensor({-1}, 1, {}), w + "dimension: got -1");
  expect_refused(with_tensor({large, large, 0}, 1, {}), w + "shape: got more elements");
  expect_refused(with_tensor({large / 64}, 1, {}), w + "data length: got 0");
  expect_refused(with_tensor(std::vector<std::int64_t>(65, 1), 2, {1}), w + "got 65 dimensions, expected at most 64");
  expect_refused(with_tensor({1}, 0, {}), w + "element type: got 0");
  expect_refused(with_tensor({1}, 99, {}), w + "element type: got 99");
  expect_refused(with_tensor({1}, -1, {}), w + "element type: got -1");
  expect_refused<Unsupported>(with_tensor({1}, 8, {}), w + "strings cannot be trained");
  expect_refused(with_tensor({2}, 9, {1, 2}), w + "got a bool that is neither 0 nor 1");
  Builder b;
  expect_refused(finish(b, module(b, {tensor(b, "")})), "[checkpoint] got a parameter without a name");
}

TEST(CheckpointHostile, NamesTwice) {
  Builder b;
  expect_refused(finish(b, module(b, {tensor(b, "w")}, {tensor(b, "w")})),
                 "[checkpoint] parameter 'w': the file has two of this name");
  Builder c;
  const auto state = module(c, {});
  const auto group = odtc::CreateOptimizerGroupDirect(c, "g", 1);
  expect_refused(finish(c, state, {group, group}), "[checkpoint] got two optimizer groups 'g'");
  Builder d;
  const Tables<odtc::IntProperty> ints = {odtc::CreateIntPropertyDirect(d, "p", 1)};
  const Tables<odtc::FloatProperty> floats = {odtc::CreateFloatPropertyDirect(d, "p", 1)};
  const auto bag = odtc::CreatePropertyBagDirect(d, &ints, &floats);
  expect_refused(finish(d, module(d, {}), {}, bag), "[checkpoint] property 'p': the file has two of this name");
}

TEST(CheckpointHostile, Momentums) {
  const auto state_of = [](Builder& b, const char* name, Tables<odtc::Tensor> tensors) {
    return odtc::CreateParameterOptimizerStateDirect(b, name, &tensors);
  };
  const std::string group = "[checkpoint] optimizer group 'group0': ";
  expect_refused(with_states([&](Builder& b) -> Tables<odtc::ParameterOptimizerState> {
                   return {state_of(b, "x", {tensor(b, "momentum0")})};
                 }),
                 group + "got momentums of 'x', which is not a parameter");
  expect_refused(with_states([&](Builder& b) -> Tables<odtc::ParameterOptimizerState> {
                   return {state_of(b, "w", {tensor(b, "m", {1, 2})})};
                 }),
                 group + "'m' of parameter 'w': got float32[1,2], expected the shape [2]");
  expect_refused(with_states([&](Builder& b) -> Tables<odtc::ParameterOptimizerState> {
                   return {state_of(b, "w", {tensor(b, "m"), tensor(b, "m")})};
                 }),
                 group + "parameter 'w': the file has two 'm'");
  expect_refused(with_states([&](Builder& b) -> Tables<odtc::ParameterOptimizerState> {
                   return {state_of(b, "w", {}), state_of(b, "w", {})};
                 }),
                 group + "parameter 'w': the file has two of this name");
  Builder b;
  const auto state = module(b, {});
  const auto negative = odtc::CreateOptimizerGroupDirect(b, "g", -1);
  expect_refused(finish(b, state, {negative}), "[checkpoint] optimizer group 'g': step: got -1");
}

TEST(CheckpointHostile, ReservedPropertyOfAnotherType) {
  Builder b;
  const Tables<odtc::StringProperty> strings = {odtc::CreateStringPropertyDirect(b, "backpass.seed", "x")};
  const auto bag = odtc::CreatePropertyBagDirect(b, nullptr, nullptr, &strings);
  expect_refused(finish(b, module(b, {}), {}, bag),
                 "[checkpoint] property 'backpass.seed': got a string, expected an integer");
}

TEST(CheckpointHostile, SharedPiecesCannotUnfold) {
  Builder b;
  const std::vector<std::uint8_t> megabyte(1 << 20);
  const auto data = b.CreateVector(megabyte);
  const auto dims = b.CreateVector(std::vector<std::int64_t>{1 << 20});
  Tables<odtc::Tensor> tensors;
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back(odtc::CreateTensor(b, b.CreateString(concat("p", i)), 0, dims, 2, data));
  }
  expect_refused(finish(b, module(b, tensors)), "[checkpoint] parameter 'p1': the file is damaged: its pieces overlap");
  // One table, a hundred thousand times: the verifier's work is bounded as well.
  Builder c;
  const auto one = tensor(c, "w");
  expect_refused(finish(c, module(c, Tables<odtc::Tensor>(100000, one))),
                 "[checkpoint] parameter 'w': the file has two");
}

TEST(CheckpointHostile, ExternalDataInMemoryAndUndeclared) {
  expect_refused(with_tensor({2}, 1, {}, 0, true), "[checkpoint] its parameters are in a second file");
  expect_refused(with_tensor({2}, 1, {}, 0, false), "[checkpoint] parameter 'w': is in a second file, but");
}

class CheckpointExternal : public ::testing::Test {
 protected:
  void expect_load_refused(const std::string& bytes, const std::string& what) {
    write_file(file_, bytes);
    const std::string start = concat("[checkpoint '", file_.string(), "'] parameter 'w': ", what);
    EXPECT_EQ(message_of([&] { CheckpointState::load(file_); }).substr(0, start.size()), start);
  }

  TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "c";
  std::filesystem::path data_ = folder_ / "c.data";
};

TEST_F(CheckpointExternal, IsChecked) {
  const std::string good = with_tensor({2}, 1, {}, 4, true);
  expect_load_refused(good, "cannot open external data");
  write_file(data_, std::string(11, 'x'));
  expect_load_refused(good, "external data 'c.data': got 11 bytes in the file, expected 8 from offset 4");
  write_file(data_, std::string(12, 'x'));
  EXPECT_EQ(CheckpointState::load(file_).parameter("w").tensor.size(), 2);
  constexpr std::int64_t large = std::numeric_limits<std::int64_t>::max();
  expect_load_refused(with_tensor({2}, 1, {}, large, true), "external data 'c.data': got 12 bytes in the file");
  expect_load_refused(with_tensor({large / 64}, 1, {}, 4, true), "external data 'c.data': got 12 bytes in the file");
  expect_load_refused(with_tensor({2}, 1, std::vector<std::uint8_t>(8), 4, true), "got data both here and");
}

TEST_F(CheckpointExternal, StaysInItsFolder) {
  const TemporaryFolder other;
  write_file(other / "secret", std::string(12, 'x'));
  std::filesystem::create_symlink(other / "secret", data_);
  expect_load_refused(with_tensor({2}, 1, {}, 4, true),
                      "external data location: got 'c.data', a symbolic link leading");
}

TEST_F(CheckpointExternal, CannotUnfold) {
  write_file(data_, std::string(1 << 16, 'x'));
  Builder b;
  Tables<odtc::Tensor> tensors;
  for (const char* name : {"v", "w"}) tensors.push_back(tensor(b, name, {1 << 16}, 2, {}, 0));
  expect_load_refused(finish(b, module(b, tensors, {}, true)), "the file is damaged: its pieces overlap");
}

TEST_F(CheckpointExternal, ReplacesADamagedCheckpoint) {
  CheckpointState state;
  state.add_parameter("w", Tensor::ints(std::vector<std::int64_t>(100, 7)));
  state.use_external_data(true);
  for (const std::string& old : {std::string("rubbish"), with_tensor({2}, 1, {}, 1 << 20, true), good_bytes()}) {
    write_file(file_, old);
    write_file(data_, "short");
    state.save(file_);
    EXPECT_EQ(CheckpointState::load(file_).parameter("w").tensor.to_ints(), std::vector<std::int64_t>(100, 7));
  }
}

TEST_F(CheckpointExternal, MissingFilesAndFolders) {
  EXPECT_NE(message_of([&] { CheckpointState::load(file_); }).find("cannot open"), std::string::npos);
  EXPECT_NE(message_of([&] { CheckpointState::load(folder_ / "."); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { CheckpointState().save(folder_ / "none" / "c"); }).find("cannot create"),
            std::string::npos);
}

}  // namespace
}  // namespace backpass::onnx_io
