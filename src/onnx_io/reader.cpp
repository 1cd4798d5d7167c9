#include "onnx_io/reader.hpp"

#include <utility>

#include "onnx_io/fields.hpp"
#include "onnx_io/read_context.hpp"

namespace backpass::onnx_io {
namespace {

GraphProto& read_graph(ReadContext&, std::string_view, GraphProto&);

std::string read_domain(Fields& f) {
  const std::string_view domain = f.bytes();
  return domain == "ai.onnx" ? std::string() : std::string(domain);
}

ValueInfoProto read_value_info(ReadContext& context, std::string_view bytes) {
  ValueInfoProto out;
  for (Fields f = context.open(bytes, "ValueInfoProto"); f.next();) switch (f.number()) {
      case value_info_field::name:
        out.name = f.text();
        break;
      case value_info_field::type:
        read_type(context, f.bytes(), out.type);
        break;
      case value_info_field::doc_string:
        out.doc_string = f.text();
        break;
      case value_info_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      default:
        f.skip();
    }
  return out;
}

/// Reads one of the fields that hold an attribute's value and returns its kind; undefined for any other field.
AttributeProto::Type read_attribute_value(ReadContext& context, Fields& f, AttributeProto& out) {
  using Type = AttributeProto::Type;
  const auto graph = [&] {
    const auto read = std::make_shared<GraphProto>();
    read_graph(context, f.bytes(), *read);
    return read;
  };
  const auto type = [&] { read_type(context, f.bytes(), out.type_protos.emplace_back()); };
  switch (f.number()) {
    case attribute_field::f:
      out.f = f.real();
      return Type::float_;
    case attribute_field::i:
      out.i = f.integer();
      return Type::int_;
    case attribute_field::s:
      out.s = f.text();
      return Type::string;
    case attribute_field::t:
      out.tensors.push_back(read_tensor(context, f.bytes()));
      return Type::tensor;
    case attribute_field::g:
      out.graphs.push_back(graph());
      return Type::graph;
    case attribute_field::floats:
      f.each_real([&](float value) { out.floats.push_back(value); });
      return Type::floats;
    case attribute_field::ints:
      f.each_integer([&](auto value) { out.ints.push_back(value); });
      return Type::ints;
    case attribute_field::strings:
      out.strings.push_back(f.text());
      return Type::strings;
    case attribute_field::tensors:
      out.tensors.push_back(read_tensor(context, f.bytes()));
      return Type::tensors;
    case attribute_field::graphs:
      out.graphs.push_back(graph());
      return Type::graphs;
    case attribute_field::sparse_tensor:
      out.sparse_tensors.push_back(read_sparse_tensor(context, f.bytes()));
      return Type::sparse_tensor;
    case attribute_field::sparse_tensors:
      out.sparse_tensors.push_back(read_sparse_tensor(context, f.bytes()));
      return Type::sparse_tensors;
    case attribute_field::tp:
      type();
      return Type::type_proto;
    case attribute_field::type_protos:
      type();
      return Type::type_protos;
    default:
      f.skip();
      return Type::undefined;
  }
}

AttributeProto::Type read_attribute_type(ReadContext& context, Fields& f) {
  const std::int64_t type = f.integer();
  if (type < 0 || type > static_cast<int>(AttributeProto::Type::type_protos)) {
    context.refuse("attribute type: got number ", type, ", expected one that ONNX defines (1 to 14)");
  }
  return static_cast<AttributeProto::Type>(type);
}

void check_attribute(ReadContext& context, AttributeProto& out, AttributeProto::Type value_type) {
  using Type = AttributeProto::Type;
  if (out.type == Type::undefined) out.type = value_type;
  const auto number = [](Type type) { return static_cast<int>(type); };
  if (value_type != Type::undefined && value_type != out.type) {
    context.refuse("attribute '", out.name, "': got a value of type ", number(value_type), ", expected type ",
                   number(out.type), " as it declares; re-export the model");
  }
  const std::size_t values = out.type == Type::tensor          ? out.tensors.size()
                             : out.type == Type::graph         ? out.graphs.size()
                             : out.type == Type::sparse_tensor ? out.sparse_tensors.size()
                             : out.type == Type::type_proto    ? out.type_protos.size()
                                                               : 1;
  if (values != 1 && (values != 0 || out.ref_attr_name.empty())) {
    context.refuse("attribute '", out.name, "' of type ", number(out.type), ": got ", values, " values, expected 1");
  }
}

AttributeProto read_attribute(ReadContext& context, std::string_view bytes) {
  using Type = AttributeProto::Type;
  AttributeProto out;
  Type value_type = Type::undefined;
  for (Fields f = context.open(bytes, "AttributeProto"); f.next();) switch (f.number()) {
      case attribute_field::name:
        out.name = f.text();
        break;
      case attribute_field::doc_string:
        out.doc_string = f.text();
        break;
      case attribute_field::type:
        out.type = read_attribute_type(context, f);
        break;
      case attribute_field::ref_attr_name:
        out.ref_attr_name = f.text();
        break;
      default: {
        const Type type = read_attribute_value(context, f, out);
        if (type == Type::undefined) break;
        if (value_type != Type::undefined && value_type != type) {
          context.refuse("attribute '", out.name, "': got values of types ", static_cast<int>(value_type), " and ",
                         static_cast<int>(type), ", expected one");
        }
        value_type = type;
      }
    }
  check_attribute(context, out, value_type);
  return out;
}

NodeProto read_node(ReadContext& context, std::string_view bytes) {
  context.count_node();
  NodeProto out;
  for (Fields f = context.open(bytes, "NodeProto"); f.next();) switch (f.number()) {
      case node_field::input:
        out.input.push_back(f.text());
        break;
      case node_field::output:
        out.output.push_back(f.text());
        break;
      case node_field::name:
        out.name = f.text();
        break;
      case node_field::op_type:
        out.op_type = f.text();
        break;
      case node_field::attribute:
        out.attribute.push_back(read_attribute(context, f.bytes()));
        break;
      case node_field::doc_string:
        out.doc_string = f.text();
        break;
      case node_field::domain:
        out.domain = read_domain(f);
        break;
      case node_field::overload:
        out.overload = f.text();
        break;
      case node_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      case node_field::device_configurations:
        out.raw_device_configurations.push_back(f.text());
        break;
      default:
        f.skip();
    }
  return out;
}

QuantizationAnnotation read_annotation(ReadContext& context, std::string_view bytes) {
  QuantizationAnnotation out;
  for (Fields f = context.open(bytes, "TensorAnnotation"); f.next();) switch (f.number()) {
      case annotation_field::tensor_name:
        out.tensor_name = f.text();
        break;
      case annotation_field::quant_parameter_tensor_names:
        read_pair(context, f, out.quant_parameter_tensor_names);
        break;
      default:
        f.skip();
    }
  return out;
}

GraphProto& read_graph(ReadContext& context, std::string_view bytes, GraphProto& out) {
  const Nesting nesting(context);
  for (Fields f = context.open(bytes, "GraphProto"); f.next();) switch (f.number()) {
      case graph_field::node:
        out.node.push_back(read_node(context, f.bytes()));
        break;
      case graph_field::name:
        out.name = f.text();
        break;
      case graph_field::initializer:
        out.initializer.push_back(read_tensor(context, f.bytes()));
        break;
      case graph_field::doc_string:
        out.doc_string = f.text();
        break;
      case graph_field::input:
        out.input.push_back(read_value_info(context, f.bytes()));
        break;
      case graph_field::output:
        out.output.push_back(read_value_info(context, f.bytes()));
        break;
      case graph_field::value_info:
        out.value_info.push_back(read_value_info(context, f.bytes()));
        break;
      case graph_field::quantization_annotation:
        out.quantization_annotation.push_back(read_annotation(context, f.bytes()));
        break;
      case graph_field::sparse_initializer:
        out.sparse_initializer.push_back(read_sparse_tensor(context, f.bytes()));
        break;
      case graph_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      default:
        f.skip();
    }
  return out;
}

OpsetId read_opset(ReadContext& context, std::string_view bytes) {
  OpsetId out;
  for (Fields f = context.open(bytes, "OperatorSetIdProto"); f.next();) switch (f.number()) {
      case opset_field::domain:
        out.domain = read_domain(f);
        break;
      case opset_field::version:
        out.version = f.integer();
        break;
      default:
        f.skip();
    }
  return out;
}

FunctionProto read_function(ReadContext& context, std::string_view bytes) {
  FunctionProto out;
  for (Fields f = context.open(bytes, "FunctionProto"); f.next();) switch (f.number()) {
      case function_field::name:
        out.name = f.text();
        break;
      case function_field::input:
        out.input.push_back(f.text());
        break;
      case function_field::output:
        out.output.push_back(f.text());
        break;
      case function_field::attribute:
        out.attribute.push_back(f.text());
        break;
      case function_field::node:
        out.node.push_back(read_node(context, f.bytes()));
        break;
      case function_field::doc_string:
        out.doc_string = f.text();
        break;
      case function_field::opset_import:
        out.opset_import.push_back(read_opset(context, f.bytes()));
        break;
      case function_field::domain:
        out.domain = read_domain(f);
        break;
      case function_field::attribute_proto:
        out.attribute_proto.push_back(read_attribute(context, f.bytes()));
        break;
      case function_field::value_info:
        out.value_info.push_back(read_value_info(context, f.bytes()));
        break;
      case function_field::overload:
        out.overload = f.text();
        break;
      case function_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      default:
        f.skip();
    }
  return out;
}

std::int64_t read_ir_version(const ReadContext& context, Fields& f) {
  const std::int64_t version = f.integer();
  if (version < kOldestIrVersion || version > kNewestIrVersion) {
    fail<Unsupported>(context.label, "ir_version: got ", version, ", expected ", kOldestIrVersion, " to ",
                      kNewestIrVersion, "; re-export the model",
                      version > kNewestIrVersion ? " with an older IR version or update Backpass" : "");
  }
  return version;
}

ModelProto read_fields(ReadContext& context, std::string_view bytes) {
  ModelProto out;
  bool has_graph = false;
  for (Fields f = context.open(bytes, "ModelProto"); f.next();) switch (f.number()) {
      case model_field::ir_version:
        out.ir_version = read_ir_version(context, f);
        break;
      case model_field::producer_name:
        out.producer_name = f.text();
        break;
      case model_field::producer_version:
        out.producer_version = f.text();
        break;
      case model_field::domain:
        out.domain = f.text();
        break;
      case model_field::model_version:
        out.model_version = f.integer();
        break;
      case model_field::doc_string:
        out.doc_string = f.text();
        break;
      case model_field::graph:
        read_graph(context, f.bytes(), out.graph);
        has_graph = true;
        break;
      case model_field::opset_import:
        out.opset_import.push_back(read_opset(context, f.bytes()));
        break;
      case model_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      case model_field::training_info:
        out.raw_training_info.push_back(f.text());
        break;
      case model_field::functions:
        out.functions.push_back(read_function(context, f.bytes()));
        break;
      case model_field::configuration:
        out.raw_configuration.push_back(f.text());
        break;
      default:
        f.skip();
    }
  if (out.ir_version == 0 || !has_graph) {
    context.refuse("not an ONNX model: it has no ", has_graph ? "ir_version" : "graph");
  }
  return out;
}

/// Runs `read`, turning what it says about damaged bytes into InvalidInput.
template <class Read>
auto guarded(const ReadContext& context, Read read) {
  try {
    return read();
  } catch (const protozero::exception& error) {
    context.refuse("truncated or damaged: ", error.what(), "; fetch or export the file again");
  } catch (const DamagedMessage& error) {
    context.refuse("damaged: ", error.what(), "; fetch or export the file again");
  }
}

}  // namespace

ModelProto read_model(const std::filesystem::path& file, const ReadLimits& limits) {
  const std::string label = concat("[file '", file.string(), "'] ");
  const auto mapped = MappedFile::open(file, label);
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  ReadContext context(label, limits, mapped, folder);
  return guarded(context, [&] { return read_fields(context, mapped->bytes()); });
}

ModelProto read_model(std::string_view bytes, std::shared_ptr<const void> owner, const std::filesystem::path& folder,
                      const ReadLimits& limits) {
  if (!owner) {
    const auto copy = std::make_shared<const std::string>(bytes);
    bytes = *copy;
    owner = copy;
  }
  ReadContext context("[model in memory] ", limits, std::move(owner), folder);
  return guarded(context, [&] { return read_fields(context, bytes); });
}

TensorProto read_tensor(std::string_view bytes) {
  const auto copy = std::make_shared<const std::string>(bytes);
  ReadContext context("[tensor in memory] ", {}, copy, {});
  return guarded(context, [&] { return read_tensor(context, *copy); });
}

}  // namespace backpass::onnx_io
