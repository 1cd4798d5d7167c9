// Nodes that choose rows: Gather, Slice and their like, along the first axes of a tensor.
#pragma once

#include <optional>

#include "graph/builder.hpp"
#include "passes/row_layout.hpp"

namespace backpass {

struct RowSelection {
  Node* node = nullptr;
  std::size_t row_axes = 0;  ///< how many first axes of input 0 it chooses among, and arranges

  Value* data() const { return node->inputs[0]; }
};

/// Whether a node chooses rows, each as a whole.
std::optional<RowSelection> row_selection(Node& node);

/// Whether it surely gives no more rows than it gets.
bool chooses_fewer(const RowSelection& selection);

/// Extents as int64 values of one element, from inputs of the graph: reading them off a value would keep that alive.
class ExtentValues {
 public:
  explicit ExtentValues(Graph& graph);

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

/// Who asks for extents of a value gets them from inputs where that is possible, and need not have the value.
void read_extents_off_inputs(Graph& graph);

/// Place of every row that a selection gives, in the order it gives them: what it makes of all places.
Value* chosen_places(Builder& b, const RowSelection& selection, ExtentValues& extents);

}  // namespace backpass
