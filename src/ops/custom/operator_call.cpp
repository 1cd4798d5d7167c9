// The public view of extents and nodes.
#include "backpass/custom_operator.hpp"
#include "graph/graph.hpp"

namespace backpass {

Extent::Extent(std::int64_t value) : dim_(std::make_shared<const Dim>(value)) {}
Extent::Extent(const Dim& dim) : dim_(std::make_shared<const Dim>(dim)) {}

bool Extent::is_known() const { return dim_->is_known(); }

std::int64_t Extent::value() const {
  if (!is_known()) fail("extent ", dim_->str(), ": got one that is not known before running, expected a number");
  return dim_->value();
}

std::string Extent::str() const { return dim_->str(); }

Extent operator+(const Extent& a, const Extent& b) { return Extent(a.dim() + b.dim()); }
Extent operator-(const Extent& a, const Extent& b) { return Extent(a.dim() - b.dim()); }
Extent operator*(const Extent& a, const Extent& b) { return Extent(a.dim() * b.dim()); }

Extent floor_div(const Extent& a, const Extent& b) {
  if (b.dim().is(0)) fail("extent ", a.str(), ": got a division by 0");
  return Extent(floor_div(a.dim(), b.dim()));
}

bool operator==(const Extent& a, const Extent& b) { return a.dim() == b.dim(); }

std::string OperatorCall::label() const { return node_.label(); }
std::size_t OperatorCall::input_count() const { return node_.inputs.size() - std::min(first_, node_.inputs.size()); }
std::size_t OperatorCall::output_count() const { return node_.outputs.size(); }
bool OperatorCall::has_input(std::size_t i) const { return node_.input(first_ + i) != nullptr; }
bool OperatorCall::has_output(std::size_t k) const { return node_.output(k) != nullptr; }

std::int64_t OperatorCall::attribute(std::string_view name, std::int64_t otherwise) const {
  return node_.attr_int(name, otherwise);
}

float OperatorCall::attribute(std::string_view name, float otherwise) const {
  return node_.attr_float(name, otherwise);
}

std::string OperatorCall::attribute(std::string_view name, const char* otherwise) const {
  return node_.attr_string(name, otherwise);
}

Attributes OperatorCall::attributes() const {
  Attributes found;
  for (const auto& [name, attribute] : node_.attributes) {
    if (name.starts_with("backpass_")) continue;  // the engine's own
    std::visit(
        [&, &key = name](const auto& v) {
          if constexpr (std::is_constructible_v<AttributeValue, decltype(v)>) found.emplace(key, v);
        },
        attribute);
  }
  return found;
}

}  // namespace backpass
