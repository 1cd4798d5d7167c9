// Extents of values that may become smaller, or go: they are read off the graph's inputs instead.
#pragma once

#include <optional>
#include <vector>

#include "graph/builder.hpp"

namespace backpass {

/// Extents as int64 values of one element, from inputs of the graph: reading them off a value would keep that alive.
class ExtentValues {
 public:
  explicit ExtentValues(const Graph& graph);

  /// Whether it is a number, an extent of an input, or a product of such.
  bool has(const Dim& extent) const;
  /// Only for those it has.
  Value* get(Builder& b, const Dim& extent);
  Value* get(Builder& b, const Shape& shape);

 private:
  struct Source {
    Dim extent;
    Value* value;
    std::int64_t axis;
  };
  std::optional<std::vector<const Source*>> factors(const Dim& extent) const;

  std::vector<Source> sources_;
};

/// Whether every extent that this Shape gives can be had from inputs of the graph.
bool can_free_shape(const Graph& graph, const Node& shape);
/// Whether the node reads v, once, and nobody else does but for its shape, which can be had elsewhere.
bool is_needed_by(const Graph& graph, const Value& v, const Node& reader);
/// Makes what it gave without what it read. The node goes.
void free_shape(Graph& graph, Node& shape);
/// The same for all of a graph.
void free_shapes(Graph& graph);

}  // namespace backpass
