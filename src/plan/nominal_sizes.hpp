// Bytes of values before extents are known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "graph/graph.hpp"

namespace backpass {

/// Sizes with one common number for every symbol among the inputs' extents: they decide what is chosen and not whether
/// it is right.
class NominalSizes {
 public:
  explicit NominalSizes(const Graph& graph);

  /// Nothing where data decide, and for what is no tensor of plain elements.
  std::optional<std::int64_t> bytes(const Value& v) const;

  /// Operations of a product or convolution; nothing for others (OpDef::flops), and where sizes are not known.
  std::optional<std::int64_t> operations(const Node& node) const;

 private:
  std::map<std::string, Dim> nominal_;
};

}  // namespace backpass
