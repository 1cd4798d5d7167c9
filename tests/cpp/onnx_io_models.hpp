// Models for the tests of onnx_io: small, and one with every field in use.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

/// A folder that lives as long as the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "backpass_onnx_io_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  auto copy = std::make_shared<std::string>(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(copy->data(), values.data(), copy->size());
  return {*copy, copy};
}

template <class T>
TensorProto make_tensor(std::string name, DType dtype, std::vector<std::int64_t> dims, const std::vector<T>& values) {
  TensorProto tensor;
  tensor.name = std::move(name);
  tensor.data_type = dtype;
  tensor.dims = std::move(dims);
  tensor.data = bytes_of(values);
  return tensor;
}

inline ModelProto make_model() {
  ModelProto model;
  model.ir_version = 10;
  model.opset_import = {{"", 21}};
  model.graph.name = "g";
  return model;
}

/// Has one initializer, "w": [1, 2, 3, 4] as float32.
inline ModelProto make_weight_model() {
  ModelProto model = make_model();
  model.graph.initializer.push_back(make_tensor<float>("w", DType::float32, {4}, {1, 2, 3, 4}));
  return model;
}

inline TypeProto make_tensor_type(DType dtype, std::vector<DimProto> shape) {
  TypeProto type;
  type.kind = TypeProto::Kind::tensor;
  type.elem_type = dtype;
  type.shape = std::move(shape);
  return type;
}

inline TypeProto make_container_type(TypeProto::Kind kind, TypeProto element) {
  TypeProto type;
  type.kind = kind;
  type.element = std::make_shared<TypeProto>(std::move(element));
  return type;
}

inline AttributeProto make_attribute(std::string name, AttributeProto::Type type) {
  AttributeProto attribute;
  attribute.name = std::move(name);
  attribute.type = type;
  return attribute;
}

/// One attribute of each kind.
inline std::vector<AttributeProto> make_every_attribute() {
  using Type = AttributeProto::Type;
  std::vector<AttributeProto> all;
  for (int type = 1; type <= static_cast<int>(Type::type_protos); ++type) {
    all.push_back(make_attribute("a" + std::to_string(type), static_cast<Type>(type)));
  }
  const auto at = [&](Type type) -> AttributeProto& { return all[static_cast<std::size_t>(type) - 1]; };
  const auto graph = std::make_shared<GraphProto>();
  graph->name = "inner";
  graph->initializer.push_back(make_tensor<std::int64_t>("c", DType::int64, {}, {7}));
  const SparseTensorProto sparse{make_tensor<float>("v", DType::float32, {2}, {5, 6}),
                                 make_tensor<std::int64_t>("i", DType::int64, {2}, {0, 3}),
                                 {8}};
  at(Type::float_).f = 0;
  at(Type::int_).i = -3;
  at(Type::string).s = std::string("a\0b", 3);
  at(Type::tensor).tensors = {make_tensor<double>("t", DType::float64, {1, 2}, {1, 2})};
  at(Type::graph).graphs = {graph};
  at(Type::floats).floats = {1.5F, -2};
  at(Type::ints).ints = {1, -1, std::int64_t{1} << 62};
  at(Type::strings).strings = {"", "x"};
  at(Type::tensors).tensors = {make_tensor<std::int8_t>("p", DType::int8, {1}, {-1}),
                               make_tensor<std::int8_t>("q", DType::int8, {0}, {})};
  at(Type::graphs).graphs = {graph, std::make_shared<GraphProto>()};
  at(Type::sparse_tensor).sparse_tensors = {sparse};
  at(Type::sparse_tensors).sparse_tensors = {sparse, sparse};
  at(Type::type_proto).type_protos = {make_tensor_type(DType::float16, {})};
  at(Type::type_protos).type_protos = {make_tensor_type(DType::boolean, {}), TypeProto{}};
  return all;
}

inline std::vector<TypeProto> make_every_type() {
  using Kind = TypeProto::Kind;
  const TypeProto tensor =
      make_tensor_type(DType::float32, {{2, "", "DATA_BATCH"}, {{}, "n", ""}, {{}, "", ""}, {0, "", ""}});
  TypeProto rankless = tensor;
  rankless.shape.reset();
  TypeProto sparse = tensor;
  sparse.kind = Kind::sparse_tensor;
  TypeProto map = make_container_type(Kind::map, make_container_type(Kind::sequence, tensor));
  map.elem_type = DType::string;
  TypeProto opaque;
  opaque.kind = Kind::opaque;
  opaque.opaque_domain = "d";
  opaque.opaque_name = "o";
  TypeProto denoted = make_tensor_type(DType::int4, {});
  denoted.denotation = "IMAGE";
  return {tensor,
          rankless,
          sparse,
          make_container_type(Kind::sequence, tensor),
          make_container_type(Kind::optional, rankless),
          map,
          opaque,
          denoted,
          TypeProto{}};
}

inline FunctionProto make_function() {
  FunctionProto function;
  function.name = "f";
  function.domain = "local";
  function.overload = "v2";
  function.doc_string = "doc";
  function.input = {"x", "y"};
  function.output = {"z"};
  function.attribute = {"alpha"};
  function.attribute_proto = {make_every_attribute()[0]};
  NodeProto node;
  node.op_type = "Elu";
  node.input = {"x"};
  node.output = {"z"};
  node.attribute = {make_attribute("alpha", AttributeProto::Type::float_),
                    make_attribute("value", AttributeProto::Type::tensor)};
  for (auto& attribute : node.attribute) attribute.ref_attr_name = "alpha";
  function.node = {node};
  function.opset_import = {{"", 18}, {"other", 1}};
  function.value_info = {{"z", make_every_type()[0], "", {{"k", "v"}}}};
  function.metadata_props = {{"m", ""}};
  return function;
}

/// Uses every field of every message.
inline ModelProto make_full_model() {
  ModelProto model = make_weight_model();
  model.producer_name = "producer";
  model.producer_version = "1.0";
  model.domain = "org.example";
  model.model_version = 5;
  model.doc_string = "doc";
  model.opset_import.push_back({"com.microsoft", 1});
  model.functions = {make_function()};
  model.metadata_props = {{"key", "value"}, {"", ""}};
  model.raw_training_info = {"\x22\x00", ""};
  model.raw_configuration = {"\x0a\x01x"};

  GraphProto& graph = model.graph;
  graph.doc_string = "graph doc";
  NodeProto node{{"x", "", "w"},         {"y"},        "n",         "Op", "local", "v2", "node doc",
                 make_every_attribute(), {{"a", "b"}}, {"\x18\x02"}};
  graph.node = {node, NodeProto{}};
  TensorProto strings;
  strings.name = "s";
  strings.data_type = DType::string;
  strings.dims = {2, 1};
  strings.string_data = {"", "text"};
  TensorProto annotated = make_tensor<std::uint8_t>("b", DType::int4, {3}, {0x21, 0x03});
  annotated.doc_string = "tensor doc";
  annotated.metadata_props = {{"p", "q"}};
  annotated.segment = {1, 2};
  graph.initializer.insert(graph.initializer.end(), {strings, annotated});
  graph.sparse_initializer = make_every_attribute()[10].sparse_tensors;
  for (const auto& type : make_every_type()) graph.input.push_back({"i", type, "doc", {{"k", "v"}}});
  graph.output = {{"y", make_every_type()[1], "", {}}};
  graph.value_info = {{"", TypeProto{}, "", {}}};
  graph.quantization_annotation = {{"x", {{"SCALE_TENSOR", "s"}}}, {"", {}}};
  graph.metadata_props = {{"g", "h"}};
  return model;
}

}  // namespace backpass::onnx_io
