// Which values, of one graph or of several, are computed alike, whatever they and their nodes are called.
#pragma once

#include <string>
#include <unordered_map>

#include "graph/graph.hpp"

namespace backpass {

class SameValues {
 public:
  /// Inputs are the same where they have the same name. The graph must outlive this and not change.
  void add(const Graph& graph);

  /// The same number for values that are computed alike from the same, by operator, attributes and what is read. What
  /// is drawn at random is the same where the node has the same name. A copy (Identity) is what it copies.
  int number_of(const Value* v);

  /// Numbers so far: those of values that are like none before come next.
  int count() const { return static_cast<int>(numbers_.size()); }

 private:
  void add_nodes(const Graph& graph);
  void add_node(const Node& node);
  std::string text_of(const Graph& body);
  int number_for(const std::string& text);

  int depth_ = 0;
  std::unordered_map<std::string, int> numbers_;
  std::unordered_map<const Value*, int> known_;
};

}  // namespace backpass
