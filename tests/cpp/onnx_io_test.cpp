// Reading and writing of well-formed models.
#include <gtest/gtest.h>

#include <protozero/pbf_writer.hpp>

#include "backpass/error.hpp"
#include "onnx_io/mapped_file.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "onnx_io_models.hpp"

namespace backpass::onnx_io {
namespace {

using protozero::pbf_writer;

// Numbers of TensorProto's fields.
enum : std::uint32_t { dims = 1, data_type = 2, float_data = 4, int32_data = 5, string_data = 6, int64_data = 7 };
enum : std::uint32_t { raw_data = 9, double_data = 10, uint64_data = 11 };

ModelProto read_back(const ModelProto& model) { return read_model(write_model(model), nullptr); }

template <class Fill>
TensorProto read_typed(DType dtype, std::int64_t count, Fill fill) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_int64(dims, count);
  writer.add_int32(data_type, static_cast<int>(dtype));
  fill(writer);
  return read_tensor(bytes);
}

TensorProto read_int32_data(DType dtype, std::int64_t count, const std::vector<std::int32_t>& values) {
  return read_typed(dtype, count, [&](pbf_writer& w) { w.add_packed_int32(int32_data, values.begin(), values.end()); });
}

std::string hex(const Bytes& bytes) {
  std::string out;
  for (const char byte : bytes.view) {
    out += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

TEST(OnnxIo, EveryFieldSurvivesARoundTrip) {
  const ModelProto model = make_full_model();
  const std::string bytes = write_model(model);
  const ModelProto back = read_model(bytes, nullptr);
  EXPECT_EQ(write_model(back), bytes);

  const NodeProto& node = back.graph.node.at(0);
  EXPECT_EQ(node.input, (std::vector<std::string>{"x", "", "w"}));
  EXPECT_EQ(node.overload, "v2");
  EXPECT_EQ(node.raw_device_configurations, model.graph.node[0].raw_device_configurations);
  EXPECT_EQ(back.raw_training_info, model.raw_training_info);
  EXPECT_EQ(back.metadata_props, model.metadata_props);
  EXPECT_EQ(back.functions.at(0).node.at(0).attribute.at(0).ref_attr_name, "alpha");
  EXPECT_EQ(back.graph.initializer.at(1).string_data, (std::vector<std::string>{"", "text"}));
  EXPECT_EQ(back.graph.initializer.at(2).segment, (std::pair<std::int64_t, std::int64_t>{1, 2}));
  EXPECT_EQ(back.graph.sparse_initializer.at(0).dims, (std::vector<std::int64_t>{8}));
  EXPECT_EQ(back.graph.quantization_annotation.size(), 2U);
}

TEST(OnnxIo, AttributesKeepTheirKindAndValue) {
  using Type = AttributeProto::Type;
  const auto attributes = read_back(make_full_model()).graph.node.at(0).attribute;
  ASSERT_EQ(attributes.size(), 14U);
  const auto at = [&](Type type) { return attributes[static_cast<std::size_t>(type) - 1]; };
  for (std::size_t i = 0; i < attributes.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(attributes[i].type), i + 1);
  EXPECT_EQ(at(Type::int_).i, -3);
  EXPECT_EQ(at(Type::string).s, std::string("a\0b", 3));
  EXPECT_EQ(at(Type::floats).floats, (std::vector<float>{1.5F, -2}));
  EXPECT_EQ(at(Type::ints).ints, (std::vector<std::int64_t>{1, -1, std::int64_t{1} << 62}));
  EXPECT_EQ(at(Type::strings).strings, (std::vector<std::string>{"", "x"}));
  EXPECT_EQ(at(Type::tensors).tensors.at(1).dims, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(at(Type::graph).graphs.at(0)->initializer.at(0).name, "c");
  EXPECT_EQ(at(Type::graphs).graphs.size(), 2U);
  EXPECT_EQ(at(Type::sparse_tensors).sparse_tensors.size(), 2U);
  EXPECT_EQ(at(Type::type_protos).type_protos.at(1).kind, TypeProto::Kind::none);
}

TEST(OnnxIo, UnknownRankUnknownDimAndZeroDimStayDistinct) {
  const auto inputs = read_back(make_full_model()).graph.input;
  ASSERT_TRUE(inputs.at(0).type.shape);
  const auto& shape = *inputs[0].type.shape;
  ASSERT_EQ(shape.size(), 4U);
  EXPECT_EQ(shape[0].value, 2);
  EXPECT_EQ(shape[0].denotation, "DATA_BATCH");
  EXPECT_EQ(shape[1].param, "n");
  EXPECT_FALSE(shape[2].value);
  EXPECT_EQ(shape[3].value, 0);
  EXPECT_FALSE(inputs.at(1).type.shape);
  ASSERT_TRUE(inputs.at(7).type.shape);
  EXPECT_TRUE(inputs[7].type.shape->empty());
  EXPECT_EQ(inputs.at(5).type.elem_type, DType::string);
  EXPECT_EQ(inputs[5].type.element->element->elem_type, DType::float32);
}

TEST(OnnxIo, DefaultDomainIsReadAsEmpty) {
  ModelProto model = make_model();
  model.opset_import[0].domain = "ai.onnx";
  model.graph.node.resize(1);
  model.graph.node[0].domain = "ai.onnx";
  const ModelProto back = read_back(model);
  EXPECT_EQ(back.opset_import.at(0).domain, "");
  EXPECT_EQ(back.graph.node.at(0).domain, "");
}

TEST(OnnxIo, RawDataIsNotCopied) {
  const auto owner = std::make_shared<const std::string>(write_model(make_weight_model()));
  const Bytes data = read_model(*owner, owner).graph.initializer.at(0).data;
  EXPECT_GE(data.view.data(), owner->data());
  EXPECT_LE(data.view.data() + data.view.size(), owner->data() + owner->size());
}

TEST(OnnxIo, DataOutlivesTheModel) {
  const TemporaryFolder folder;
  write_model(make_weight_model(), folder / "m.onnx");
  const Bytes data = read_model(folder / "m.onnx").graph.initializer.at(0).data;
  std::filesystem::remove(folder / "m.onnx");
  EXPECT_EQ(hex(data), "0000803f000000400000404000008040");
}

TEST(OnnxIo, TypedFieldsBecomePackedBytes) {
  EXPECT_EQ(hex(read_int32_data(DType::int32, 2, {-2, 1}).data), "feffffff01000000");
  EXPECT_EQ(hex(read_int32_data(DType::int16, 2, {-2, 1}).data), "feff0100");
  EXPECT_EQ(hex(read_int32_data(DType::uint16, 1, {65535}).data), "ffff");
  EXPECT_EQ(hex(read_int32_data(DType::int8, 2, {-1, 127}).data), "ff7f");
  EXPECT_EQ(hex(read_int32_data(DType::uint8, 2, {255, 0}).data), "ff00");
  EXPECT_EQ(hex(read_int32_data(DType::boolean, 3, {0, 1, 2}).data), "000101");
  EXPECT_EQ(hex(read_int32_data(DType::float16, 1, {0x3c00}).data), "003c");
  EXPECT_EQ(hex(read_int32_data(DType::bfloat16, 1, {0x3f80}).data), "803f");
  EXPECT_EQ(hex(read_int32_data(DType::float8e4m3fn, 1, {0x38}).data), "38");
  EXPECT_EQ(hex(read_int32_data(DType::int4, 3, {0x21, 0x03}).data), "2103");
  EXPECT_EQ(hex(read_int32_data(DType::uint2, 5, {0xe4, 0x01}).data), "e401");
  // Four 6-bit elements in three bytes, the first in the lowest bits.
  EXPECT_EQ(hex(read_int32_data(DType::float6e2m3, 5, {1, 2, 3, 63, 5}).data), "8130fc05");
}

TEST(OnnxIo, WideTypedFieldsBecomePackedBytes) {
  const std::vector<float> floats{1, 2};
  const std::vector<double> doubles{1, 2};
  const std::vector<std::int64_t> ints{-1};
  const std::vector<std::uint64_t> unsigned_ints{0xffffffffU};
  const auto put_floats = [&](pbf_writer& w) { w.add_packed_float(float_data, floats.begin(), floats.end()); };
  const auto put_doubles = [&](pbf_writer& w) { w.add_packed_double(double_data, doubles.begin(), doubles.end()); };
  const auto put_ints = [&](pbf_writer& w) { w.add_packed_int64(int64_data, ints.begin(), ints.end()); };
  const auto put_unsigned = [&](pbf_writer& w) {
    w.add_packed_uint64(uint64_data, unsigned_ints.begin(), unsigned_ints.end());
  };
  EXPECT_EQ(hex(read_typed(DType::float32, 2, put_floats).data), "0000803f00000040");
  EXPECT_EQ(hex(read_typed(DType::complex64, 1, put_floats).data), "0000803f00000040");
  EXPECT_EQ(hex(read_typed(DType::float64, 2, put_doubles).data), "000000000000f03f0000000000000040");
  EXPECT_EQ(hex(read_typed(DType::complex128, 1, put_doubles).data), "000000000000f03f0000000000000040");
  EXPECT_EQ(hex(read_typed(DType::int64, 1, put_ints).data), "ffffffffffffffff");
  EXPECT_EQ(hex(read_typed(DType::uint32, 1, put_unsigned).data), "ffffffff");
  EXPECT_EQ(hex(read_typed(DType::uint64, 1, put_unsigned).data), "ffffffff00000000");
}

TEST(OnnxIo, TypedFieldsMayBeUnpackedOrInPieces) {
  const auto unpacked = [](pbf_writer& w) {
    w.add_float(float_data, 1);
    w.add_float(float_data, 2);
  };
  const std::vector<std::int32_t> piece{1, 2};
  const auto mixed = [&](pbf_writer& w) {
    w.add_packed_int32(int32_data, piece.begin(), piece.end());
    w.add_int32(int32_data, 3);
  };
  EXPECT_EQ(hex(read_typed(DType::float32, 2, unpacked).data), "0000803f00000040");
  EXPECT_EQ(hex(read_typed(DType::uint8, 3, mixed).data), "010203");
}

TEST(OnnxIo, RawBoolsBecomeZeroOrOne) {
  const auto tensor = read_typed(DType::boolean, 3, [](pbf_writer& w) { w.add_bytes(raw_data, "\x00\xff\x01", 3); });
  EXPECT_EQ(hex(tensor.data), "000101");
}

TEST(OnnxIo, UnknownFieldsAreSkipped) {
  std::string bytes = write_model(make_full_model());
  pbf_writer writer(bytes);
  writer.add_bytes(1000, "future", 6);
  writer.add_int64(1001, 5);
  writer.add_double(1002, 5);
  EXPECT_EQ(write_model(read_model(bytes, nullptr)), write_model(make_full_model()));
}

TEST(OnnxIo, MissingAttributeTypeIsTakenFromTheValue) {
  ModelProto model = make_model();
  model.graph.node.resize(1);
  std::string bytes = write_model(model);
  std::string attribute;
  pbf_writer(attribute).add_float(2, 3.5F);
  {
    pbf_writer writer(bytes);
    pbf_writer graph(writer, 7);  // merged with the first graph, as protobuf does
    pbf_writer node(graph, 1);
    node.add_message(5, attribute);
  }
  const auto back = read_model(bytes, nullptr).graph.node.at(1).attribute.at(0);
  EXPECT_EQ(back.type, AttributeProto::Type::float_);
  EXPECT_EQ(back.f, 3.5F);
}

TEST(OnnxIo, WriterRefusesDataThatDoesNotMatchTheShape) {
  ModelProto model = make_weight_model();
  model.graph.initializer[0].dims = {5};
  EXPECT_THROW(write_model(model), InvalidInput);
}

TEST(OnnxIo, WriterReplacesAFileAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_file(folder / "m.onnx", "old");
  std::filesystem::permissions(folder / "m.onnx",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  write_model(make_weight_model(), folder / "m.onnx");
  EXPECT_EQ(read_file(folder / "m.onnx"), write_model(make_weight_model()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(std::filesystem::status(folder / "m.onnx").permissions() & std::filesystem::perms::group_read,
            std::filesystem::perms::none);
}

TEST(OnnxIo, WriterThatFailsKeepsTheOldFile) {
  const TemporaryFolder folder;
  write_file(folder / "m.onnx", "old");
  ModelProto model = make_weight_model();
  model.graph.initializer[0].dims = {5};
  EXPECT_THROW(write_model(model, folder / "m.onnx"), InvalidInput);
  EXPECT_EQ(read_file(folder / "m.onnx"), "old");
  EXPECT_THROW(write_model(make_weight_model(), folder / "missing/m.onnx"), InvalidInput);
  EXPECT_THROW(write_model(make_weight_model(), folder.path()), InvalidInput);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(OnnxIo, WriterRefusesMoreThanTwoGibibytesInline) {
  const TemporaryFolder folder;
  const std::int64_t size = (std::int64_t{1} << 31) + 8;
  write_file(folder / "hole", "");
  std::filesystem::resize_file(folder / "hole", static_cast<std::uintmax_t>(size));
  const auto mapped = MappedFile::open(folder / "hole", "");
  ModelProto model = make_model();
  model.graph.initializer = {make_tensor<char>("big", DType::uint8, {size}, {})};
  model.graph.initializer[0].data = {mapped->bytes(), mapped};
  try {
    write_model(model);
    FAIL() << "no exception";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string_view(error.what()).find("external_data_threshold"), std::string_view::npos) << error.what();
  }
}

}  // namespace
}  // namespace backpass::onnx_io
