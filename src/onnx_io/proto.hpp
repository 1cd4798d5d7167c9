// ONNX messages as plain structs: what a file says, nothing interpreted. Field names are ONNX's own.
//
// Weights are not copied on reading: `Bytes` points into the mapped file (or the caller's buffer) and keeps it alive.
// Reading is reader.hpp, writing is writer.hpp; turning a model into a Graph is import.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backpass/dtype.hpp"

namespace backpass::onnx_io {

using StringPairs = std::vector<std::pair<std::string, std::string>>;  // repeated StringStringEntryProto

/// A run of bytes owned by something else, and that something. Of any alignment: where the file put them.
struct Bytes {
  std::string_view view;
  std::shared_ptr<const void> owner;
};

struct TensorProto {
  std::string name;
  std::string doc_string;
  DType data_type = DType::undefined;
  std::vector<std::int64_t> dims;

  /// The elements, little-endian and packed, wherever the file kept them: raw_data, a typed *_data field (converted
  /// when read) or an external file (mapped). Exactly byte_size(data_type, product of dims) bytes when read from a
  /// file; bool is 0 or 1. Empty for strings and for tensors without elements.
  Bytes data;
  std::vector<std::string> string_data;

  /// location, offset, length, checksum, as written; empty when the data was inline. The writer decides anew.
  StringPairs external_data;
  std::int64_t data_location = 0;  ///< 1 when the data was external
  StringPairs metadata_props;
  /// TensorProto.Segment, kept only so that it can be written back.
  std::optional<std::pair<std::int64_t, std::int64_t>> segment;
};

/// `dims` is the shape of the whole, `values` the elements that are not zero (its name is the tensor's), `indices`
/// where.
struct SparseTensorProto {
  TensorProto values;
  TensorProto indices;
  std::vector<std::int64_t> dims;
};

struct DimProto {
  std::optional<std::int64_t> value;  ///< dim_value
  std::string param;                  ///< dim_param; empty when absent
  std::string denotation;
};

struct TypeProto {
  enum class Kind : std::uint8_t { none, tensor, sparse_tensor, sequence, optional, map, opaque };
  Kind kind = Kind::none;
  DType elem_type = DType::undefined;          ///< tensor, sparse_tensor; the key type of a map
  std::optional<std::vector<DimProto>> shape;  ///< absent means unknown rank
  std::shared_ptr<TypeProto> element;          ///< of a sequence or optional, value of a map: never null when read
  std::string opaque_domain;
  std::string opaque_name;
  std::string denotation;
};

struct ValueInfoProto {
  std::string name;
  TypeProto type;
  std::string doc_string;
  StringPairs metadata_props;
};

struct GraphProto;

struct AttributeProto {
  /// The numbers are AttributeProto.AttributeType.
  enum class Type : std::uint8_t {
    undefined = 0,
    float_ = 1,
    int_ = 2,
    string = 3,
    tensor = 4,
    graph = 5,
    floats = 6,
    ints = 7,
    strings = 8,
    tensors = 9,
    graphs = 10,
    sparse_tensor = 11,
    sparse_tensors = 12,
    type_proto = 13,
    type_protos = 14,
  };
  std::string name;
  std::string ref_attr_name;  ///< inside a function body: take the value of the calling node's attribute
  std::string doc_string;
  Type type = Type::undefined;  ///< when the file leaves it out: the kind of the value it has
  float f = 0;
  std::int64_t i = 0;
  std::string s;
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;
  std::vector<TensorProto> tensors;                 ///< tensor: exactly one
  std::vector<std::shared_ptr<GraphProto>> graphs;  ///< graph: exactly one
  std::vector<SparseTensorProto> sparse_tensors;    ///< sparse_tensor: exactly one
  std::vector<TypeProto> type_protos;               ///< type_proto: exactly one
};

struct NodeProto {
  std::vector<std::string> input;  ///< "" marks an omitted optional input
  std::vector<std::string> output;
  std::string name;
  std::string op_type;
  std::string domain;  ///< "ai.onnx" is read as ""
  std::string overload;
  std::string doc_string;
  std::vector<AttributeProto> attribute;
  StringPairs metadata_props;
  std::vector<std::string> raw_device_configurations;  ///< serialized NodeDeviceConfigurationProto, kept as bytes
};

struct QuantizationAnnotation {
  std::string tensor_name;
  StringPairs quant_parameter_tensor_names;
};

struct GraphProto {
  std::string name;
  std::string doc_string;
  std::vector<NodeProto> node;
  std::vector<TensorProto> initializer;
  std::vector<SparseTensorProto> sparse_initializer;
  std::vector<ValueInfoProto> input;
  std::vector<ValueInfoProto> output;
  std::vector<ValueInfoProto> value_info;
  std::vector<QuantizationAnnotation> quantization_annotation;
  StringPairs metadata_props;
};

struct OpsetId {
  std::string domain;  ///< "ai.onnx" is read as ""
  std::int64_t version = 0;
};

struct FunctionProto {
  std::string name;
  std::string domain;  ///< "ai.onnx" is read as ""
  std::string overload;
  std::string doc_string;
  std::vector<std::string> input;
  std::vector<std::string> output;
  std::vector<std::string> attribute;           ///< parameters without a default
  std::vector<AttributeProto> attribute_proto;  ///< parameters with a default
  std::vector<NodeProto> node;
  std::vector<OpsetId> opset_import;
  std::vector<ValueInfoProto> value_info;
  StringPairs metadata_props;
};

struct ModelProto {
  std::int64_t ir_version = 0;
  std::string producer_name;
  std::string producer_version;
  std::string domain;
  std::int64_t model_version = 0;
  std::string doc_string;
  GraphProto graph;
  std::vector<OpsetId> opset_import;
  std::vector<FunctionProto> functions;
  StringPairs metadata_props;
  std::vector<std::string> raw_training_info;  ///< serialized TrainingInfoProto, kept as bytes
  std::vector<std::string> raw_configuration;  ///< serialized DeviceConfigurationProto, kept as bytes
  std::string opening;                         ///< of messages about it: "[file 'x.onnx'] "; empty of one in memory
};

}  // namespace backpass::onnx_io
