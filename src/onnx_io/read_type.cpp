// TypeProto and the small messages that several others share.
#include "onnx_io/fields.hpp"
#include "onnx_io/read_context.hpp"

namespace backpass::onnx_io {
namespace {

DimProto read_dim(ReadContext& context, std::string_view bytes) {
  DimProto out;
  for (Fields f = context.open(bytes, "TensorShapeProto.Dimension"); f.next();) switch (f.number()) {
      case shape_field::dim_value:
        out.value = f.integer();
        out.param.clear();
        break;
      case shape_field::dim_param:
        out.param = f.text();
        out.value.reset();
        break;
      case shape_field::denotation:
        out.denotation = f.text();
        break;
      default:
        f.skip();
    }
  return out;
}

void read_shape(ReadContext& context, std::string_view bytes, TypeProto& out) {
  if (!out.shape) out.shape.emplace();
  for (Fields f = context.open(bytes, "TensorShapeProto"); f.next();) {
    if (f.number() == shape_field::dim) {
      out.shape->push_back(read_dim(context, f.bytes()));
    } else {
      f.skip();
    }
  }
}

void read_tensor_type(ReadContext& context, std::string_view bytes, TypeProto& out) {
  for (Fields f = context.open(bytes, "TypeProto.Tensor"); f.next();) switch (f.number()) {
      case element_field::elem_type:
        out.elem_type = read_dtype(context, f);
        break;
      case element_field::shape:
        read_shape(context, f.bytes(), out);
        break;
      default:
        f.skip();
    }
}

void read_element(ReadContext& context, std::string_view bytes, TypeProto& out) {
  if (!out.element) out.element = std::make_shared<TypeProto>();
  read_type(context, bytes, *out.element);
}

void read_element_type(ReadContext& context, std::string_view bytes, TypeProto& out) {
  if (!out.element) out.element = std::make_shared<TypeProto>();
  for (Fields f = context.open(bytes, "TypeProto.Sequence"); f.next();) {
    if (f.number() == element_field::elem_type) {
      read_element(context, f.bytes(), out);
    } else {
      f.skip();
    }
  }
}

void read_map_type(ReadContext& context, std::string_view bytes, TypeProto& out) {
  if (!out.element) out.element = std::make_shared<TypeProto>();
  for (Fields f = context.open(bytes, "TypeProto.Map"); f.next();) switch (f.number()) {
      case element_field::key_type:
        out.elem_type = read_dtype(context, f);
        break;
      case element_field::value_type:
        read_element(context, f.bytes(), out);
        break;
      default:
        f.skip();
    }
}

void read_opaque_type(ReadContext& context, std::string_view bytes, TypeProto& out) {
  for (Fields f = context.open(bytes, "TypeProto.Opaque"); f.next();) switch (f.number()) {
      case opaque_field::domain:
        out.opaque_domain = f.text();
        break;
      case opaque_field::name:
        out.opaque_name = f.text();
        break;
      default:
        f.skip();
    }
}

/// The kinds are alternatives: another one than before starts afresh.
void set_kind(TypeProto& type, TypeProto::Kind kind) {
  if (type.kind == kind) return;
  TypeProto fresh;
  fresh.kind = kind;
  fresh.denotation = std::move(type.denotation);
  type = std::move(fresh);
}

}  // namespace

void read_type(ReadContext& context, std::string_view bytes, TypeProto& out) {
  using Kind = TypeProto::Kind;
  const Nesting nesting(context);
  const auto alternative = [&](Kind kind, Fields& f, auto read) {
    set_kind(out, kind);
    read(context, f.bytes(), out);
  };
  for (Fields f = context.open(bytes, "TypeProto"); f.next();) switch (f.number()) {
      case type_field::tensor:
        alternative(Kind::tensor, f, read_tensor_type);
        break;
      case type_field::sparse_tensor:
        alternative(Kind::sparse_tensor, f, read_tensor_type);
        break;
      case type_field::sequence:
        alternative(Kind::sequence, f, read_element_type);
        break;
      case type_field::optional:
        alternative(Kind::optional, f, read_element_type);
        break;
      case type_field::map:
        alternative(Kind::map, f, read_map_type);
        break;
      case type_field::opaque:
        alternative(Kind::opaque, f, read_opaque_type);
        break;
      case type_field::denotation:
        out.denotation = f.text();
        break;
      default:
        f.skip();
    }
}

DType read_dtype(ReadContext& context, Fields& f) {
  const std::int64_t code = f.integer();
  if (code != 0 && !is_known_dtype(code)) {
    context.refuse("element type: got number ", code, ", expected one that ONNX defines (1 to ",
                   static_cast<int>(DType::float6e3m2), ")");
  }
  return static_cast<DType>(code);
}

void read_pair(ReadContext& context, Fields& fields, StringPairs& out) {
  auto& pair = out.emplace_back();
  for (Fields f = context.open(fields.bytes(), "StringStringEntryProto"); f.next();) switch (f.number()) {
      case pair_field::key:
        pair.first = f.text();
        break;
      case pair_field::value:
        pair.second = f.text();
        break;
      default:
        f.skip();
    }
}

}  // namespace backpass::onnx_io
