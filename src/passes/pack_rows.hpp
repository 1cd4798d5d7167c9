// Rewrites a graph so that values are computed for the rows that are needed of them (row_needs.hpp), packed.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "passes/row_needs.hpp"

namespace backpass {

class RowPacker {
 public:
  RowPacker(Graph& graph, RowNeeds& needs);

  /// Whether a selection is worth moving: something is computed in front of it, by rows.
  bool is_moved(const RowNeeds::Selection& selection) const;
  /// Sets of rows of a space: `places`, ascending.
  void set_places(const RowSet* set, Value* places);
  /// Places that a selection chooses, in the numbering of what it chooses from.
  Value* places_of(const RowNeeds::Selection& selection);

  void run();

  /// Operations and bytes of results that are not computed any more, by the set they were computed for.
  struct Saving {
    Dim operations = 0;
    Dim bytes = 0;
    std::size_t nodes = 0;
  };
  const std::map<const RowSet*, Saving>& savings() const { return savings_; }

 private:
  Value* places(Builder& b, const RowSet* set);
  Value* inverse(Builder& b, const RowSet* set);
  Value* chosen(const RowSelection& selection);
  Value* packed(Builder& b, Value* v, const RowLayout& layout, const RowSet* set);
  void pack(Node& node);
  std::vector<Value*> packed_inputs(Builder& b, const Node& node, const RowSet* set, const RowLayout& out);
  std::vector<Value*> pack_results(Builder& b, const Node& node, const RowSet* set);
  void pack_selection(const RowNeeds::Selection& selection);
  void pack_site(RowNeeds::Site& site);
  Value* all_rows(Builder& b, Value* v, const RowLayout& layout, std::int64_t width);
  void note(const Node& before, const Value* now, const RowSet* set);

  Graph& graph_;
  RowNeeds& needs_;
  ExtentValues extents_;
  std::map<const RowSet*, Value*> places_, inverse_;
  std::unordered_map<const Node*, Value*> chosen_;
  std::map<std::pair<const Value*, const RowSet*>, Value*> packed_;
  std::map<const RowSet*, Saving> savings_;
};

/// Operations of a node with known ranks, as OpDef::flops says.
Dim operations_of_node(const Node& node);

}  // namespace backpass
