#include "runtime/value_info.hpp"

#include <map>

namespace backpass {
namespace {

std::string ort_element_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float";
    case DType::float64:
      return "double";
    case DType::boolean:
      return "bool";
    default:
      return std::string(name_of(dtype));
  }
}

std::string ort_type(const Type& type) {
  switch (type.kind) {
    case Type::Kind::tensor:
      return "tensor(" + ort_element_name(type.dtype) + ")";
    case Type::Kind::sequence:
      return "seq(" + ort_type(*type.element) + ")";
    case Type::Kind::optional:
      return "optional(" + ort_type(*type.element) + ")";
    case Type::Kind::unknown:
      break;
  }
  return "unknown";
}

bool fits(const Type& type, const Tensor& fed) {
  if (type.dtype != DType::undefined && fed.dtype() != type.dtype) return false;
  if (!type.shape) return true;
  if (type.shape->size() != fed.dims().size()) return false;
  for (std::size_t i = 0; i < fed.dims().size(); ++i) {
    const Dim& d = (*type.shape)[i];
    if (d.is_known() && !d.is(fed.dims()[i])) return false;
  }
  return true;
}

bool fits(const ValueInfo& info, const Tensor& given) {
  if (given.dtype() != info.dtype) return false;
  if (!info.has_shape) return true;
  const Dims& dims = given.dims();
  if (dims.size() != info.shape.size()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::string& extent = info.shape[i];  // a number, or a symbol
    const bool is_number = !extent.empty() && extent.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && extent != std::to_string(dims[i])) return false;
  }
  return true;
}

std::string text_of(const ValueInfo& info) {
  std::string text(name_of(info.dtype));
  if (!info.has_shape) return text;
  text += '[';
  for (std::size_t i = 0; i < info.shape.size(); ++i) text += (i == 0 ? "" : ",") + info.shape[i];
  return text + ']';
}

std::string text_of(const RuntimeValue& fed) {
  if (fed.is_tensor()) return std::string(name_of(fed.tensor.dtype())) + to_string(fed.tensor.dims());
  return fed.kind == RuntimeValue::Kind::sequence ? "a sequence" : "nothing";
}

bool fits(const Type& type, const RuntimeValue& fed) {
  switch (type.kind) {
    case Type::Kind::tensor:
      return fed.is_tensor() && fits(type, fed.tensor);
    case Type::Kind::sequence:
      return fed.kind == RuntimeValue::Kind::sequence;
    case Type::Kind::optional:
      return fed.kind == RuntimeValue::Kind::none || fits(*type.element, fed);
    case Type::Kind::unknown:
      break;
  }
  return true;
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
  if (!fits(input.type, fed)) {
    return concat("\ninput '", input.name, "': got ", text_of(fed), ", expected ", input.type.str());
  }
  if (fed.kind != RuntimeValue::Kind::sequence || input.type.kind != Type::Kind::sequence) return "";
  std::string problems;
  const Type& element = *input.type.element;
  for (std::size_t i = 0; i < fed.items->size(); ++i) {
    const RuntimeValue& item = (*fed.items)[i];
    if (fits(element, item)) continue;
    problems += concat("\ninput '", input.name, "' element ", i, ": got ", text_of(item), ", expected ", element.str());
  }
  return problems;
}

std::string mismatch(const ValueInfo& info, const Tensor& given) {
  return fits(info, given) ? "" : concat("got ", text_of(given), ", expected ", text_of(info));
}

void check_symbols(std::span<Value* const> inputs, std::span<const RuntimeValue> fed) {
  std::map<std::string, std::int64_t> known;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Type& type = inputs[i]->type;
    if (!type.is_tensor() || !type.shape || !fed[i].is_tensor()) continue;
    for (std::size_t axis = 0; axis < type.shape->size(); ++axis) {
      auto symbol = (*type.shape)[axis].symbol_name();
      if (!symbol) continue;
      std::int64_t extent = fed[i].tensor.dims()[axis];
      auto [it, added] = known.emplace(*symbol, extent);
      if (!added && it->second != extent) {
        fail("input '", inputs[i]->name, "' axis ", axis, ": got ", extent, ", but '", *symbol, "' is ", it->second,
             " in another input; they must be equal");
      }
    }
  }
}

}  // namespace backpass
