// Operators that read only a part of their first input, as large as what they write: a row of a table, a slice.
#pragma once

#include <string_view>

#include "graph/graph.hpp"

namespace backpass {

/// Lives beside the operator that it speaks of.
struct RegisterPartialRead {
  explicit RegisterPartialRead(std::string_view op, std::string_view domain = "");
};

bool reads_part(const Node& node);

}  // namespace backpass
