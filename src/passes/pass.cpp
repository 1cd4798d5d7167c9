#include "passes/pass.hpp"

#include <optional>

#include "graph/op.hpp"

namespace backpass {
namespace {

std::optional<Dim> elements(const Value& v) {
  if (!v.type.is_tensor() || !v.type.shape) return std::nullopt;
  return unless_it_overflows([&] { return product(*v.type.shape); });
}

std::optional<Dim> bytes(const Value& v) {
  constexpr std::int64_t kMany = 8;  // elements, so that those smaller than a byte are left out
  const std::optional<Dim> count = elements(v);
  if (!count || v.type.dtype == DType::undefined || v.type.dtype == DType::string) return std::nullopt;
  const auto size = static_cast<std::int64_t>(byte_size(v.type.dtype, kMany));
  if (size < kMany) return std::nullopt;
  return unless_it_overflows([&] { return *count * (size / kMany); });
}

}  // namespace

std::string bytes_of(std::span<Value* const> values) {
  Dim sum = 0;
  for (const Value* v : values) {
    if (v == nullptr) continue;
    const std::optional<Dim> own = bytes(*v);
    const std::optional<Dim> more = own ? unless_it_overflows([&] { return sum + *own; }) : std::nullopt;
    if (!more) return "";
    sum = *more;
  }
  return sum.str();
}

std::string bytes_of(const Value* value) {
  const std::optional<Dim> own = value == nullptr ? Dim(0) : bytes(*value);
  return own ? own->str() : "";
}

std::string lost_bytes_of(const Value& value) {
  const std::optional<Dim> own = bytes(value);
  return own ? (Dim(0) - *own).str() : "";
}

std::string elements_of(const Value& value) {
  const std::optional<Dim> count = elements(value);
  return count ? count->str() : "";
}

std::string operations_of(const Node& node) {
  const bool pointwise = node.def != nullptr && node.def->tile != nullptr && node.output(0) != nullptr;
  return pointwise ? elements_of(*node.output(0)) : "";
}

}  // namespace backpass
