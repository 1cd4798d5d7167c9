#include "onnx_io/reader.hpp"

#include <utility>

#include "onnx_io/mapped_file.hpp"
#include "onnx_io/read_message.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

using AttributeType = AttributeProto::Type;

void drop_default_domain(std::string& domain) {
  if (domain == "ai.onnx") domain.clear();
}

std::size_t count_values(const AttributeProto& attribute) {
  switch (attribute.type) {
    case AttributeType::tensor:
      return attribute.tensors.size();
    case AttributeType::graph:
      return attribute.graphs.size();
    case AttributeType::sparse_tensor:
      return attribute.sparse_tensors.size();
    case AttributeType::type_proto:
      return attribute.type_protos.size();
    default:
      return 1;
  }
}

/// `found` is the kind of the value that stands in the file; undefined when there is none.
void settle_type(const ReadContext& context, AttributeProto& attribute, AttributeType found) {
  if (attribute.type == AttributeType::undefined) attribute.type = found;
  if (found != AttributeType::undefined && found != attribute.type) {
    context.refuse("attribute ", printable(attribute.name), ": got a value of type ", static_cast<int>(found),
                   ", expected ", static_cast<int>(attribute.type), " as it declares; re-export the model");
  }
  const std::size_t values = count_values(attribute);
  if (values != 1 && (values != 0 || attribute.ref_attr_name.empty())) {
    context.refuse("attribute ", printable(attribute.name), ": got ", values,
                   " values, expected 1; re-export the model");
  }
}

/// Looks at the outermost fields only, so that a file which is no model, or one from the future, is named as such.
void check_header(const ReadContext& context, std::string_view bytes) {
  constexpr std::uint32_t ir_version = 1;
  constexpr std::uint32_t graph = 7;
  std::int64_t version = 0;
  bool has_graph = false;
  for (Fields f(bytes); f.next();) {
    has_graph = has_graph || f.number() == graph;
    if (f.number() == ir_version) {
      version = f.integer();
    } else {
      f.skip();
    }
  }
  if (version == 0 || !has_graph) context.refuse("not an ONNX model: it has no ", has_graph ? "ir_version" : "graph");
  if (version < kOldestIrVersion || version > kNewestIrVersion) {
    fail<Unsupported>(context.label, "ir_version: got ", version, ", expected ", kOldestIrVersion, " to ",
                      kNewestIrVersion, "; re-export the model",
                      version > kNewestIrVersion ? " with an older IR version or update Backpass" : "");
  }
}

/// Runs `read`, turning what it says about damaged bytes into InvalidInput.
template <class Read>
void guarded(const ReadContext& context, Read read) {
  try {
    read();
  } catch (const protozero::exception& error) {
    context.refuse("truncated or damaged: ", error.what(), "; fetch or export the file again");
  } catch (const DamagedMessage& error) {
    context.refuse("damaged: ", error.what(), "; fetch or export the file again");
  }
}

ModelProto read_model(ReadContext& context, std::string_view bytes) {
  ModelProto out;
  guarded(context, [&] {
    check_header(context, bytes);
    read_message(context, bytes, out);
  });
  return out;
}

}  // namespace

void read_message(ReadContext& context, std::string_view bytes, GraphProto& out) {
  const Nesting nesting(context);
  read_fields(context, bytes, out);
}

void read_message(ReadContext& context, std::string_view bytes, FunctionProto& out) {
  read_fields(context, bytes, out);
  drop_default_domain(out.domain);
}

void read_message(ReadContext& context, std::string_view bytes, NodeProto& out) {
  context.count_node();
  read_fields(context, bytes, out);
  drop_default_domain(out.domain);
}

void read_message(ReadContext& context, std::string_view bytes, OpsetId& out) {
  read_fields(context, bytes, out);
  drop_default_domain(out.domain);
}

void read_message(ReadContext& context, std::string_view bytes, AttributeProto& out) {
  AttributeType found = AttributeType::undefined;
  for (Fields f = context.open(bytes); f.next();) {
    FieldReader reader(context, f);
    fields(out, reader);
    if (!reader.was_read()) f.skip();
    if (reader.attribute_type == AttributeType::undefined) continue;
    if (found != AttributeType::undefined && found != reader.attribute_type) {
      context.refuse("attribute ", printable(out.name), ": got values of types ", static_cast<int>(found), " and ",
                     static_cast<int>(reader.attribute_type), ", expected one; re-export the model");
    }
    found = reader.attribute_type;
  }
  settle_type(context, out, found);
}

void read_message(ReadContext& context, std::string_view bytes, TypeProto& out) {
  using Kind = TypeProto::Kind;
  const Nesting nesting(context);
  read_fields(context, bytes, out);
  const bool has_element = out.kind == Kind::sequence || out.kind == Kind::optional || out.kind == Kind::map;
  if (has_element && !out.element) out.element = std::make_shared<TypeProto>();
}

void read_message(ReadContext& context, std::string_view bytes, DimProto& out) {
  read_fields(context, bytes, out);
  if (out.value) out.param.clear();
}

ModelProto read_model(const std::filesystem::path& file, const ReadLimits& limits) {
  const std::string label = concat("[file '", file.string(), "'] ");
  const auto mapped = MappedFile::open(file, label);
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  ReadContext context(label, limits, mapped, folder);
  ModelProto model = read_model(context, mapped->bytes());
  model.opening = label;
  return model;
}

ModelProto read_model(std::string_view bytes, std::shared_ptr<const void> owner, const std::filesystem::path& folder,
                      const ReadLimits& limits) {
  if (!owner) {
    const auto copy = std::make_shared<const std::string>(bytes);
    bytes = *copy;
    owner = copy;
  }
  ReadContext context("[model in memory] ", limits, std::move(owner), folder);
  return read_model(context, bytes);
}

TensorProto read_tensor(std::string_view bytes) {
  const auto copy = std::make_shared<const std::string>(bytes);
  ReadContext context("[tensor in memory] ", {}, copy, {});
  TensorProto out;
  guarded(context, [&] { read_message(context, *copy, out); });
  return out;
}

}  // namespace backpass::onnx_io
