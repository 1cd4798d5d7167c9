#include "runtime/value_info.hpp"

namespace backpass {
namespace {

std::string ort_element_name(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float";
    case DType::float64: return "double";
    case DType::boolean: return "bool";
    default: return std::string(name_of(dtype));
  }
}

std::string ort_type(const Type& type) {
  switch (type.kind) {
    case Type::Kind::tensor: return "tensor(" + ort_element_name(type.dtype) + ")";
    case Type::Kind::sequence: return "seq(" + ort_type(*type.element) + ")";
    case Type::Kind::optional: return "optional(" + ort_type(*type.element) + ")";
    case Type::Kind::unknown: break;
  }
  return "unknown";
}

std::string tensor_mismatch(const Value& input, const Type& type, const Tensor& fed) {
  auto say = [&](const std::string& got) {
    return concat("\ninput '", input.name, "': got ", got, ", expected ", type.str());
  };
  std::string got = std::string(name_of(fed.dtype())) + to_string(fed.dims());
  if (type.dtype != DType::undefined && fed.dtype() != type.dtype) return say(got);
  if (!type.shape) return "";
  if (type.shape->size() != fed.dims().size()) return say(got);
  for (std::size_t i = 0; i < fed.dims().size(); ++i) {
    const Dim& d = (*type.shape)[i];
    if (d.is_known() && !d.is(fed.dims()[i])) return say(got);
  }
  return "";
}

}  // namespace

ValueInfo describe(const Value& value) {
  ValueInfo info;
  info.name = value.name;
  info.type = ort_type(value.type);
  const Type& type = value.type.kind == Type::Kind::optional ? *value.type.element : value.type;
  info.dtype = type.is_tensor() ? type.dtype : DType::undefined;
  info.has_shape = type.is_tensor() && type.shape.has_value();
  if (info.has_shape) {
    for (const Dim& d : *type.shape) info.shape.push_back(d.str());
  }
  return info;
}

std::string mismatch(const Value& input, const RuntimeValue& fed) {
  const Type& type = input.type;
  switch (type.kind) {
    case Type::Kind::tensor:
      if (!fed.is_tensor()) return concat("\ninput '", input.name, "': expected a tensor, ", type.str());
      return tensor_mismatch(input, type, fed.tensor);
    case Type::Kind::sequence:
      if (fed.kind != RuntimeValue::Kind::sequence) return concat("\ninput '", input.name, "': expected a sequence");
      return "";
    default: return "";
  }
}

}  // namespace backpass
