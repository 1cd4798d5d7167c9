// Who reads what, kept up to date while a pass rewrites nodes.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

class UseIndex {
 public:
  explicit UseIndex(const Graph& graph);

  /// Reads of the value by nodes, plus one if it is an output of the graph.
  std::size_t count(const Value* v) const;
  /// The one node that reads the value, or null when there is another use of any kind.
  Node* only_reader(const Value* v) const;
  const std::vector<Node*>& readers(const Value* v) const;

  /// Turns the node into another operator with other inputs, keeping its outputs. Nodes that lose their last reader
  /// stop counting as readers themselves; remove_dead_nodes() takes them out of the graph.
  void rewrite(Node* node, std::string_view domain, std::string_view op, std::vector<Value*> inputs);

 private:
  void add_read(Value* v, Node* node);
  void drop_read(Value* v, Node* node);

  const Graph& graph_;
  std::unordered_map<const Value*, std::vector<Node*>> readers_;
};

}  // namespace backpass
