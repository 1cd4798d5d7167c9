// The ONNX messages (onnx-ml.proto, IR version 14) field by field: the one place that knows their numbers.
//
// `fields(message, field)` calls `field(number, member)` for each field, in ascending order. The reader passes a
// visitor that fills the member whose number stands next in the file, the writer one that writes each member; `message`
// is const for the latter. Names have a call of their own, `field.name(number, member)`, and so have alternatives:
// `field.alternative(kind, number, member)`.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

template <class T, class Message>
concept Is = std::same_as<std::remove_const_t<T>, Message>;

/// The messages inside TypeProto, which proto.hpp folds into it.
template <class Type>
struct TensorType {
  Type& type;
};
template <class Type>
struct ElementType {  ///< of a sequence or optional
  Type& type;
};
template <class Type>
struct MapType {
  Type& type;
};
template <class Type>
struct OpaqueType {
  Type& type;
};

void fields(Is<ModelProto> auto& m, auto&& field) {
  field(1, m.ir_version);
  field(2, m.producer_name);
  field(3, m.producer_version);
  field(4, m.domain);
  field(5, m.model_version);
  field(6, m.doc_string);
  field(7, m.graph);
  field(8, m.opset_import);
  field(14, m.metadata_props);
  field(20, m.raw_training_info);
  field(25, m.functions);
  field(26, m.raw_configuration);
}

void fields(Is<OpsetId> auto& m, auto&& field) {
  field.name(1, m.domain);
  field(2, m.version);
}

/// StringStringEntryProto
void fields(Is<std::pair<std::string, std::string>> auto& m, auto&& field) {
  field(1, m.first);
  field(2, m.second);
}

void fields(Is<GraphProto> auto& m, auto&& field) {
  field(1, m.node);
  field.name(2, m.name);
  field(5, m.initializer);
  field(10, m.doc_string);
  field(11, m.input);
  field(12, m.output);
  field(13, m.value_info);
  field(14, m.quantization_annotation);
  field(15, m.sparse_initializer);
  field(16, m.metadata_props);
}

void fields(Is<QuantizationAnnotation> auto& m, auto&& field) {
  field.name(1, m.tensor_name);
  field(2, m.quant_parameter_tensor_names);
}

void fields(Is<FunctionProto> auto& m, auto&& field) {
  field.name(1, m.name);
  field.name(4, m.input);
  field.name(5, m.output);
  field.name(6, m.attribute);
  field(7, m.node);
  field(8, m.doc_string);
  field(9, m.opset_import);
  field.name(10, m.domain);
  field(11, m.attribute_proto);
  field(12, m.value_info);
  field.name(13, m.overload);
  field(14, m.metadata_props);
}

void fields(Is<NodeProto> auto& m, auto&& field) {
  field.name(1, m.input);
  field.name(2, m.output);
  field.name(3, m.name);
  field.name(4, m.op_type);
  field(5, m.attribute);
  field(6, m.doc_string);
  field.name(7, m.domain);
  field.name(8, m.overload);
  field(9, m.metadata_props);
  field(10, m.raw_device_configurations);
}

void fields(Is<AttributeProto> auto& m, auto&& field) {
  using Type = AttributeProto::Type;
  field.name(1, m.name);
  field.alternative(Type::float_, 2, m.f);
  field.alternative(Type::int_, 3, m.i);
  field.alternative(Type::string, 4, m.s);
  field.alternative(Type::tensor, 5, m.tensors);
  field.alternative(Type::graph, 6, m.graphs);
  field.alternative(Type::floats, 7, m.floats);
  field.alternative(Type::ints, 8, m.ints);
  field.alternative(Type::strings, 9, m.strings);
  field.alternative(Type::tensors, 10, m.tensors);
  field.alternative(Type::graphs, 11, m.graphs);
  field(13, m.doc_string);
  field.alternative(Type::type_proto, 14, m.type_protos);
  field.alternative(Type::type_protos, 15, m.type_protos);
  field(20, m.type);
  field.name(21, m.ref_attr_name);
  field.alternative(Type::sparse_tensor, 22, m.sparse_tensors);
  field.alternative(Type::sparse_tensors, 23, m.sparse_tensors);
}

/// All but the numeric typed fields: see typed_data.hpp.
void fields(Is<TensorProto> auto& m, auto&& field) {
  field(1, m.dims);
  field(2, m.data_type);
  field(3, m.segment);
  field(6, m.string_data);
  field.name(8, m.name);
  field(9, m.data);
  field(12, m.doc_string);
  field(13, m.external_data);
  field(14, m.data_location);
  field(16, m.metadata_props);
}

/// TensorProto.Segment
void fields(Is<std::pair<std::int64_t, std::int64_t>> auto& m, auto&& field) {
  field(1, m.first);
  field(2, m.second);
}

void fields(Is<SparseTensorProto> auto& m, auto&& field) {
  field(1, m.values);
  field(2, m.indices);
  field(3, m.dims);
}

void fields(Is<ValueInfoProto> auto& m, auto&& field) {
  field.name(1, m.name);
  field(2, m.type);
  field(3, m.doc_string);
  field(4, m.metadata_props);
}

template <Is<TypeProto> Type>
void fields(Type& m, auto&& field) {
  using Kind = TypeProto::Kind;
  field.alternative(Kind::tensor, 1, TensorType<Type>{m});
  field.alternative(Kind::sequence, 4, ElementType<Type>{m});
  field.alternative(Kind::map, 5, MapType<Type>{m});
  field(6, m.denotation);
  field.alternative(Kind::opaque, 7, OpaqueType<Type>{m});
  field.alternative(Kind::sparse_tensor, 8, TensorType<Type>{m});
  field.alternative(Kind::optional, 9, ElementType<Type>{m});
}

template <class Type>
void fields(const TensorType<Type>& m, auto&& field) {
  field(1, m.type.elem_type);
  field(2, m.type.shape);
}

template <class Type>
void fields(const ElementType<Type>& m, auto&& field) {
  field(1, m.type.element);
}

template <class Type>
void fields(const MapType<Type>& m, auto&& field) {
  field(1, m.type.elem_type);
  field(2, m.type.element);
}

template <class Type>
void fields(const OpaqueType<Type>& m, auto&& field) {
  field(1, m.type.opaque_domain);
  field(2, m.type.opaque_name);
}

/// TensorShapeProto
void fields(Is<std::vector<DimProto>> auto& m, auto&& field) { field(1, m); }

void fields(Is<DimProto> auto& m, auto&& field) {
  field(1, m.value);
  field.name(2, m.param);
  field(3, m.denotation);
}

}  // namespace backpass::onnx_io
