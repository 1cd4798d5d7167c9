// Gradient operators that can do without a result of the forward pass: they make it again as they go.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// What a node turns into to give the same without reading one of its inputs.
struct Substitute {
  std::string domain;
  std::string op;
  std::string name;  ///< by which a random node draws its numbers
  std::vector<Value*> inputs;
  std::map<std::string, Attribute, std::less<>> attributes;
};

/// How nodes of an operator do without a value that they read; nothing where they need it.
struct RegisterSubstitute {
  using Find = std::optional<Substitute> (*)(const Node& reader, const Value& read);
  RegisterSubstitute(std::string_view domain, std::string_view op, Find find);
};

std::optional<Substitute> substitute_for(const Node& reader, const Value& read);

/// Turns the reader into its substitute.
void substitute(Graph& graph, Node& reader, Substitute by);

}  // namespace backpass
