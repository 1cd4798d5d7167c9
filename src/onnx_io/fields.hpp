// Field numbers of the ONNX messages (onnx-ml.proto, IR version 14), shared by the reader and the writer.
#pragma once

#include <cstdint>

namespace backpass::onnx_io {

namespace model_field {
enum : std::uint32_t {
  ir_version = 1,
  producer_name = 2,
  producer_version = 3,
  domain = 4,
  model_version = 5,
  doc_string = 6,
  graph = 7,
  opset_import = 8,
  metadata_props = 14,
  training_info = 20,
  functions = 25,
  configuration = 26,
};
}  // namespace model_field

namespace opset_field {
enum : std::uint32_t { domain = 1, version = 2 };
}  // namespace opset_field

namespace pair_field {  // StringStringEntryProto
enum : std::uint32_t { key = 1, value = 2 };
}  // namespace pair_field

namespace graph_field {
enum : std::uint32_t {
  node = 1,
  name = 2,
  initializer = 5,
  doc_string = 10,
  input = 11,
  output = 12,
  value_info = 13,
  quantization_annotation = 14,
  sparse_initializer = 15,
  metadata_props = 16,
};
}  // namespace graph_field

namespace annotation_field {  // TensorAnnotation
enum : std::uint32_t { tensor_name = 1, quant_parameter_tensor_names = 2 };
}  // namespace annotation_field

namespace function_field {
enum : std::uint32_t {
  name = 1,
  input = 4,
  output = 5,
  attribute = 6,
  node = 7,
  doc_string = 8,
  opset_import = 9,
  domain = 10,
  attribute_proto = 11,
  value_info = 12,
  overload = 13,
  metadata_props = 14,
};
}  // namespace function_field

namespace node_field {
enum : std::uint32_t {
  input = 1,
  output = 2,
  name = 3,
  op_type = 4,
  attribute = 5,
  doc_string = 6,
  domain = 7,
  overload = 8,
  metadata_props = 9,
  device_configurations = 10,
};
}  // namespace node_field

namespace attribute_field {
enum : std::uint32_t {
  name = 1,
  f = 2,
  i = 3,
  s = 4,
  t = 5,
  g = 6,
  floats = 7,
  ints = 8,
  strings = 9,
  tensors = 10,
  graphs = 11,
  doc_string = 13,
  tp = 14,
  type_protos = 15,
  type = 20,
  ref_attr_name = 21,
  sparse_tensor = 22,
  sparse_tensors = 23,
};
}  // namespace attribute_field

namespace tensor_field {
enum : std::uint32_t {
  dims = 1,
  data_type = 2,
  segment = 3,
  float_data = 4,
  int32_data = 5,
  string_data = 6,
  int64_data = 7,
  name = 8,
  raw_data = 9,
  double_data = 10,
  uint64_data = 11,
  doc_string = 12,
  external_data = 13,
  data_location = 14,
  metadata_props = 16,
};
}  // namespace tensor_field

namespace segment_field {
enum : std::uint32_t { begin = 1, end = 2 };
}  // namespace segment_field

namespace sparse_field {  // SparseTensorProto
enum : std::uint32_t { values = 1, indices = 2, dims = 3 };
}  // namespace sparse_field

namespace value_info_field {
enum : std::uint32_t { name = 1, type = 2, doc_string = 3, metadata_props = 4 };
}  // namespace value_info_field

namespace type_field {  // TypeProto: which kind it is, and its denotation
enum : std::uint32_t {
  tensor = 1,
  sequence = 4,
  map = 5,
  denotation = 6,
  opaque = 7,
  sparse_tensor = 8,
  optional = 9,
};
}  // namespace type_field

namespace element_field {  // TypeProto.Tensor, .SparseTensor, .Sequence, .Optional; a map says key and value instead
enum : std::uint32_t { elem_type = 1, shape = 2, key_type = 1, value_type = 2 };
}  // namespace element_field

namespace opaque_field {
enum : std::uint32_t { domain = 1, name = 2 };
}  // namespace opaque_field

namespace shape_field {  // TensorShapeProto and its Dimension
enum : std::uint32_t { dim = 1, dim_value = 1, dim_param = 2, denotation = 3 };
}  // namespace shape_field

}  // namespace backpass::onnx_io
