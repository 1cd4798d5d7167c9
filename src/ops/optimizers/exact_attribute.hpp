// Attributes that hold a double: as a float where that is exact, else as a float64 tensor. So an optimizer that runs as
// nodes computes the bits of the one that runs as a pass.
#pragma once

#include <string_view>

#include "graph/graph.hpp"

namespace backpass {

inline Attribute exact_attribute(double value) {
  const auto rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) == value) return rounded;
  Tensor exact(DType::float64, {});
  *exact.as<double>() = value;
  return exact;
}

inline double exact_attribute(const Node& node, std::string_view key, double otherwise) {
  if (!node.has_attribute(key)) return otherwise;
  const auto found = node.attributes.find(key);
  if (!std::holds_alternative<Tensor>(found->second)) return static_cast<double>(node.attr_float(key, 0));
  const Tensor& exact = std::get<Tensor>(found->second);
  if (exact.dtype() != DType::float64 || exact.size() != 1) {
    fail(node.label(), " attribute ", key, ": got ", name_of(exact.dtype()), shown(exact.dims()),
         ", expected a float or a float64 tensor of one element");
  }
  return *exact.as<double>();
}

}  // namespace backpass
