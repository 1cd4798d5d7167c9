// Damaged and hostile input: refused with a message, never a crash.
#include <gtest/gtest.h>

#include <limits>
#include <protozero/pbf_writer.hpp>

#include "backpass/error.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "onnx_io_models.hpp"

namespace backpass::onnx_io {
namespace {

using protozero::pbf_writer;

template <class Exception = InvalidInput>
std::string message_of(const std::string& bytes, const ReadLimits& limits = {}) {
  try {
    read_model(bytes, nullptr, {}, limits);
  } catch (const Exception& error) {
    return error.what();
  }
  return "no exception";
}

/// Throws nothing but Error.
void read_whatever(std::string_view bytes) {
  try {
    const auto owner = std::make_shared<const std::string>(bytes);
    write_model(read_model(*owner, owner));
  } catch (const Error&) {
  }
}

/// A model whose only initializer is "w" with these dims, type and, from `fill`, data.
template <class Fill>
std::string with_tensor(const std::vector<std::int64_t>& dims, int data_type, Fill fill) {
  std::string bytes = write_model(make_model());
  pbf_writer writer(bytes);
  pbf_writer graph(writer, 7);
  pbf_writer tensor(graph, 5);
  for (const std::int64_t dim : dims) tensor.add_int64(1, dim);
  tensor.add_int32(2, data_type);
  tensor.add_string(8, "w");
  fill(tensor);
  tensor.commit();
  graph.commit();
  return bytes;
}

std::string with_raw_tensor(const std::vector<std::int64_t>& dims, int data_type, const std::string& raw) {
  return with_tensor(dims, data_type, [&](pbf_writer& w) { w.add_bytes(9, raw); });
}

TEST(OnnxIoHostile, EveryPrefixIsReadOrRefused) {
  const std::string bytes = write_model(make_full_model());
  for (std::size_t size = 0; size < bytes.size(); ++size) read_whatever(std::string_view(bytes).substr(0, size));
}

TEST(OnnxIoHostile, EveryChangedByteIsReadOrRefused) {
  const std::string bytes = write_model(make_full_model());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int change : {0x01, 0x02, 0x07, 0x08, 0x7f, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      read_whatever(damaged);
    }
  }
}

TEST(OnnxIoHostile, TruncationIsNamed) {
  const TemporaryFolder folder;
  const std::string bytes = write_model(make_weight_model());
  write_file(folder / "m.onnx", bytes.substr(0, bytes.size() - 3));
  try {
    read_model(folder / "m.onnx");
    FAIL() << "no exception";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(
        std::string(error.what()).find(concat("[file '", (folder / "m.onnx").string(), "'] truncated or damaged")), 0U)
        << error.what();
  }
}

TEST(OnnxIoHostile, WhatIsNoModelIsNamed) {
  EXPECT_EQ(message_of(""), "[model in memory] not an ONNX model: it has no graph");
  EXPECT_NE(message_of("PK\x03\x04 this is a zip file"), "no exception");
  EXPECT_NE(message_of(std::string(100, '\xff')), "no exception");
  EXPECT_THROW(read_model(std::filesystem::path("/nonexistent.onnx")), InvalidInput);
  EXPECT_THROW(read_model(std::filesystem::temp_directory_path()), InvalidInput);
}

TEST(OnnxIoHostile, IrVersionsOutsideTheRangeAreUnsupported) {
  ModelProto model = make_model();
  for (const std::int64_t version : {kOldestIrVersion, kNewestIrVersion}) {
    model.ir_version = version;
    EXPECT_EQ(message_of(write_model(model)), "no exception");
  }
  for (const std::int64_t version : {std::int64_t{-1}, kOldestIrVersion - 1, kNewestIrVersion + 1}) {
    model.ir_version = version;
    const std::string message = message_of<Unsupported>(write_model(model));
    EXPECT_NE(message.find(concat("ir_version: got ", version, ", expected 3 to 14")), std::string::npos) << message;
  }
}

TEST(OnnxIoHostile, TensorShapesAreChecked) {
  const std::int64_t huge = std::int64_t{1} << 40;
  const std::string prefix = "[model in memory] tensor 'w': ";
  EXPECT_EQ(message_of(with_raw_tensor({-1}, 1, "")), prefix + "dimension: got -1, expected 0 or more");
  EXPECT_EQ(message_of(with_raw_tensor({huge, huge}, 1, "")).find(prefix + "shape: "), 0U);
  EXPECT_EQ(message_of(with_raw_tensor({0, huge, huge}, 1, "")).find(prefix + "shape: "), 0U);
  EXPECT_EQ(
      message_of(with_raw_tensor({huge}, 1, "1234")),
      prefix + "data length: got 4, expected 4398046511104 (1099511627776 float32 elements); re-export the model");
  EXPECT_EQ(message_of(with_raw_tensor(std::vector<std::int64_t>(65, 1), 1, "1234")).find(prefix + "rank: got 65"), 0U);
  EXPECT_EQ(message_of(with_raw_tensor({0, 5}, 1, "")), "no exception");
}

TEST(OnnxIoHostile, TensorDataIsChecked) {
  const std::string prefix = "[model in memory] tensor 'w': ";
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(message_of(with_raw_tensor({3}, 1, "1234")),
            prefix + "data length: got 4, expected 12 (3 float32 elements); re-export the model");
  EXPECT_EQ(message_of(with_raw_tensor({1}, 0, "1234")).find(prefix + "data_type: got none"), 0U);
  EXPECT_NE(message_of(with_raw_tensor({1}, 99, "1234")).find("element type: got number 99"), std::string::npos);
  EXPECT_NE(message_of(with_raw_tensor({1}, 8, "1234")).find("expected string_data"), std::string::npos);
  EXPECT_NE(
      message_of(with_tensor({huge}, 7, [](pbf_writer& w) { w.add_int64(7, 1); })).find("int64_data: got 1 entries"),
      std::string::npos);
  EXPECT_NE(message_of(with_tensor({1}, 3, [](pbf_writer& w) { w.add_int32(5, 300); })).find("does not fit in int8"),
            std::string::npos);
  EXPECT_NE(message_of(with_tensor({1}, 1, [](pbf_writer& w) { w.add_int32(5, 1); })).find("expected float_data"),
            std::string::npos);
  EXPECT_NE(message_of(with_tensor({1}, 1, [](pbf_writer& w) { w.add_bytes(4, "123", 3); })).find("float_data: got 0"),
            std::string::npos);
  EXPECT_NE(message_of(with_tensor({1}, 1, [](pbf_writer& w) { w.add_bytes(4, "12345", 5); })).find("in 5 bytes"),
            std::string::npos);
  EXPECT_NE(message_of(with_tensor({2}, 8, [](pbf_writer& w) { w.add_bytes(6, "x", 1); })).find("string_data: got 1"),
            std::string::npos);
}

TEST(OnnxIoHostile, TensorDataStandsInOnePlace) {
  const auto both = [](pbf_writer& w) {
    w.add_float(4, 1);
    w.add_bytes(9, "1234", 4);
  };
  EXPECT_NE(message_of(with_tensor({1}, 1, both)).find("in more than one place"), std::string::npos);
  const auto two_fields = [](pbf_writer& w) {
    w.add_float(4, 1);
    w.add_int32(5, 1);
  };
  EXPECT_NE(message_of(with_tensor({1}, 1, two_fields)).find("float_data and int32_data"), std::string::npos);
}

TEST(OnnxIoHostile, AttributesAreChecked) {
  const auto with_attribute = [](auto fill) {
    std::string bytes = write_model(make_model());
    pbf_writer writer(bytes);
    pbf_writer graph(writer, 7);
    pbf_writer node(graph, 1);
    pbf_writer attribute(node, 5);
    attribute.add_string(1, "a");
    fill(attribute);
    attribute.commit();
    node.commit();
    graph.commit();
    return bytes;
  };
  EXPECT_NE(
      message_of(with_attribute([](pbf_writer& w) { w.add_int32(20, 77); })).find("attribute type: got number 77"),
      std::string::npos);
  EXPECT_NE(message_of(with_attribute([](pbf_writer& w) { w.add_int32(20, 4); })).find("attribute 'a': got 0 values"),
            std::string::npos);
  const auto mismatch = [](pbf_writer& w) {
    w.add_int64(3, 1);
    w.add_int32(20, 1);
  };
  EXPECT_NE(message_of(with_attribute(mismatch)).find("attribute 'a': got a value of type 2, expected 1"),
            std::string::npos);
  const auto two_values = [](pbf_writer& w) {
    w.add_int64(3, 1);
    w.add_float(2, 1);
  };
  EXPECT_NE(message_of(with_attribute(two_values)).find("got values of types 2 and 1"), std::string::npos);
}

TEST(OnnxIoHostile, SparseTensorsHaveTheirParts) {
  const auto with_sparse = [](const std::string& message) {
    std::string bytes = write_model(make_model());
    pbf_writer writer(bytes);
    pbf_writer(writer, 7).add_message(15, message);
    return bytes;
  };
  const std::string no_values{"\x0a\x06\x08\x00\x10\x01\x42\x00", 8};  // float32, shape [0]
  EXPECT_NE(message_of(with_sparse("\x18\x02")).find("has no values"), std::string::npos);
  EXPECT_EQ(message_of(with_sparse(no_values)), "no exception");
  const std::string one_value{"\x0a\x0a\x08\x01\x10\x01\x4a\x04\x00\x00\x00\x00", 12};
  EXPECT_NE(message_of(with_sparse(one_value)).find("has no indices"), std::string::npos);
}

TEST(OnnxIoHostile, GraphsNestOnlySoDeep) {
  GraphProto graph;
  for (int depth = 0; depth < 1000; ++depth) {
    NodeProto node;
    node.attribute = {make_attribute("body", AttributeProto::Type::graph)};
    node.attribute[0].graphs = {std::make_shared<GraphProto>(std::move(graph))};
    graph = GraphProto{};
    graph.node = {std::move(node)};
  }
  ModelProto model = make_model();
  model.graph = std::move(graph);
  EXPECT_NE(message_of(write_model(model)).find("got more than 64 levels (ReadLimits::max_depth)"), std::string::npos);
}

TEST(OnnxIoHostile, TypesNestOnlySoDeep) {
  TypeProto type = make_tensor_type(DType::float32, {});
  for (int depth = 0; depth < 1000; ++depth) type = make_container_type(TypeProto::Kind::sequence, type);
  ModelProto model = make_model();
  model.graph.input = {{"x", type, "", {}}};
  EXPECT_NE(message_of(write_model(model)).find("got more than 64 levels"), std::string::npos);
}

TEST(OnnxIoHostile, NodesAndMessagesAreCounted) {
  ModelProto model = make_model();
  model.graph.node.resize(10);
  const std::string bytes = write_model(model);
  EXPECT_EQ(message_of(bytes, {.max_nodes = 10}), "no exception");
  EXPECT_NE(message_of(bytes, {.max_nodes = 9}).find("number of nodes: got more than 9"), std::string::npos);
  EXPECT_NE(message_of(bytes, {.max_messages = 9}).find("number of messages: got more than 9"), std::string::npos);
}

TEST(OnnxIoHostile, WrongWireTypesAreRefused) {
  std::string bytes = write_model(make_model());
  pbf_writer(bytes).add_int64(2, 5);  // producer_name is a string
  EXPECT_EQ(
      message_of(bytes),
      "[model in memory] damaged: field 2 of a message: got wire type 0, expected 2; fetch or export the file again");
}

TEST(OnnxIoHostile, LoneTensorsAreCheckedToo) {
  EXPECT_THROW(read_tensor(""), InvalidInput);
  EXPECT_THROW(read_tensor("\x08"), InvalidInput);
}

}  // namespace
}  // namespace backpass::onnx_io
