// Whose fault an error is.
#pragma once

#include <string_view>

#include "backpass/error.hpp"
#include "graph/graph.hpp"

namespace backpass {

/// Runs f. What it throws about input that is wrong or too large, without saying where, gets this node's label.
template <class F>
decltype(auto) blaming(const Node& node, F&& f) {
  try {
    return f();
  } catch (const InvalidInput& e) {
    if (std::string_view(e.what()).starts_with('[')) throw;
    fail(node.label(), " ", e.what());
  }
}

}  // namespace backpass
