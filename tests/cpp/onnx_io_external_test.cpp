// External data: what is mapped, and what is refused.
#include <gtest/gtest.h>

#include "backpass/error.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "onnx_io_models.hpp"

namespace backpass::onnx_io {
namespace {

constexpr WriteOptions kAllExternal{.external_data_threshold = 0};

std::string message_of(const std::filesystem::path& file) {
  try {
    read_model(file);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no exception";
}

/// Replaces `from` by `to`, of the same length, in a file.
void patch(const std::filesystem::path& file, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string bytes = read_file(file);
  const auto at = bytes.find(from);
  ASSERT_NE(at, std::string::npos);
  write_file(file, bytes.replace(at, from.size(), to));
}

class OnnxIoExternal : public ::testing::Test {
 protected:
  OnnxIoExternal() { write_model(make_weight_model(), model_, kAllExternal); }

  void expect_refused(const std::string& what) {
    const std::string message = message_of(model_);
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("[file '" + model_.string() + "'] tensor 'w': "), std::string::npos) << message;
  }

  TemporaryFolder folder_;
  std::filesystem::path model_ = folder_ / "m.onnx";
  std::filesystem::path data_ = folder_ / "m.onnx.data";
};

TEST_F(OnnxIoExternal, IsWrittenBesideTheModelAndMapped) {
  const TensorProto tensor = read_model(model_).graph.initializer.at(0);
  EXPECT_EQ(tensor.data.view, make_weight_model().graph.initializer[0].data.view);
  EXPECT_EQ(tensor.external_data, (StringPairs{{"location", "m.onnx.data"}, {"offset", "0"}, {"length", "16"}}));
}

TEST_F(OnnxIoExternal, BecomesInlineAgain) {
  EXPECT_EQ(write_model(read_model(model_)), write_model(make_weight_model()));
}

TEST_F(OnnxIoExternal, MayBeOverwrittenByTheModelThatMapsIt) {
  ModelProto model = read_model(model_);
  model.graph.initializer.insert(model.graph.initializer.begin(),
                                 make_tensor<std::int32_t>("first", DType::int32, {3}, {7, 8, 9}));
  write_model(model, model_, kAllExternal);
  EXPECT_EQ(model.graph.initializer[1].data.view, make_weight_model().graph.initializer[0].data.view);
  const ModelProto back = read_model(model_);
  EXPECT_EQ(back.graph.initializer.at(0).data.view, model.graph.initializer[0].data.view);
  EXPECT_EQ(back.graph.initializer.at(1).data.view, model.graph.initializer[1].data.view);
}

TEST_F(OnnxIoExternal, GoesOutFromTheThresholdOn) {
  ModelProto model = make_weight_model();
  model.graph.initializer.push_back(make_tensor<float>("small", DType::float32, {3}, {1, 2, 3}));
  write_model(model, model_, {.external_data_threshold = 16});
  const auto tensors = read_model(model_).graph.initializer;
  EXPECT_EQ(tensors.at(0).data_location, 1);
  EXPECT_EQ(tensors.at(1).data_location, 0);
  EXPECT_TRUE(tensors.at(1).external_data.empty());
}

TEST_F(OnnxIoExternal, IsStoredOnceWhenShared) {
  ModelProto model = make_weight_model();
  model.graph.initializer.push_back(model.graph.initializer[0]);
  model.graph.initializer[1].name = "tied";
  write_model(model, model_, kAllExternal);
  EXPECT_EQ(std::filesystem::file_size(data_), 16U);
  const auto tensors = read_model(model_).graph.initializer;
  EXPECT_EQ(tensors.at(0).data.view.data(), tensors.at(1).data.view.data());
  EXPECT_EQ(tensors.at(0).data.owner, tensors.at(1).data.owner);
}

TEST_F(OnnxIoExternal, IsAlignedToPages) {
  ModelProto model = make_weight_model();
  model.graph.initializer.push_back(make_tensor("page", DType::uint8, {4096}, std::vector<std::uint8_t>(4096, 3)));
  write_model(model, model_, kAllExternal);
  const TensorProto tensor = read_model(model_).graph.initializer.at(1);
  EXPECT_EQ(tensor.external_data.at(1).second, "4096");
  EXPECT_EQ(tensor.data.view, model.graph.initializer[1].data.view);
}

TEST_F(OnnxIoExternal, LeavesSparseTensorsStringsAndFunctionsInline) {
  ModelProto model = make_full_model();
  write_model(model, model_, kAllExternal);
  EXPECT_EQ(write_model(read_model(model_)), write_model(model));
  EXPECT_EQ(read_model(model_).graph.sparse_initializer.at(0).values.data_location, 0);
}

TEST_F(OnnxIoExternal, OfAModelInMemoryNeedsAFolder) {
  const std::string bytes = read_file(model_);
  EXPECT_THROW(read_model(bytes, nullptr), InvalidInput);
  EXPECT_EQ(read_model(bytes, nullptr, folder_.path()).graph.initializer.at(0).data.view.size(), 16U);
}

TEST_F(OnnxIoExternal, IsFoundFromTheCurrentFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  EXPECT_EQ(message_of("m.onnx"), "no exception");
  std::filesystem::current_path(before);
}

TEST_F(OnnxIoExternal, LengthMustMatchTheShape) {
  patch(model_,
        "\x02"
        "16",
        "\x02"
        "12");
  EXPECT_EQ(message_of(model_), "[file '" + model_.string() +
                                    "'] tensor 'w': external data length: got 12, expected 16 (4 float32 elements); "
                                    "re-export the model");
}

TEST_F(OnnxIoExternal, NumbersMustBeNumbers) {
  patch(model_,
        "\x02"
        "16",
        "\x02"
        "-6");
  expect_refused("external data length: got '-6', expected a whole number of bytes");
}

TEST_F(OnnxIoExternal, MustBeAllThere) {
  write_file(data_, std::string(15, 'x'));
  expect_refused("external data 'm.onnx.data': got 15 bytes in the file, expected 16 from offset 0");
  write_file(data_, "");
  expect_refused("got 0 bytes in the file");
  std::filesystem::remove(data_);
  expect_refused("cannot open external data");
}

TEST_F(OnnxIoExternal, OffsetMustBeInsideTheFile) {
  write_model(make_weight_model(), model_, kAllExternal);
  patch(model_, std::string("\x12\x01") + "0", std::string("\x12\x01") + "1");
  expect_refused("expected 16 from offset 1");
}

TEST_F(OnnxIoExternal, LocationMustStayInTheFolder) {
  patch(model_, "m.onnx.data", "/etc/passwd");
  expect_refused("which is an absolute path");
  write_model(make_weight_model(), model_, kAllExternal);
  patch(model_, "m.onnx.data", "../x../../y");
  expect_refused("which contains '..'");
  write_model(make_weight_model(), model_, kAllExternal);
  patch(model_, "m.onnx.data", std::string("m.onnx\0data", 11));
  expect_refused("which is not a file name");
}

TEST_F(OnnxIoExternal, SymbolicLinksMustStayInTheFolder) {
  const TemporaryFolder elsewhere;
  std::filesystem::rename(data_, elsewhere / "data");
  std::filesystem::create_symlink(elsewhere / "data", data_);
  expect_refused("a symbolic link leading out of the model's folder");

  std::filesystem::remove(data_);
  std::filesystem::rename(elsewhere / "data", folder_ / "real");
  std::filesystem::create_symlink("real", data_);
  EXPECT_EQ(message_of(model_), "no exception");
}

TEST_F(OnnxIoExternal, LinkedFoldersMustStayInTheFolder) {
  const TemporaryFolder elsewhere;
  std::filesystem::rename(data_, elsewhere / "onnx.data");
  std::filesystem::create_directory_symlink(elsewhere.path(), folder_ / "m");
  patch(model_, "m.onnx.data", "m/onnx.data");
  expect_refused("a symbolic link leading out of the model's folder");
}

TEST_F(OnnxIoExternal, MustBeARegularFile) {
  std::filesystem::remove(data_);
  std::filesystem::create_directory(data_);
  expect_refused("is not a regular file");
}

}  // namespace
}  // namespace backpass::onnx_io
