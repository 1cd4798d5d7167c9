// What moving a selection in front of a node changes: operations and bytes of results, as expressions of extents.
#pragma once

#include <optional>

#include "passes/axis_map.hpp"
#include "passes/selection.hpp"

namespace backpass {

/// More where above 0, saved where below.
struct Change {
  Dim operations = 0;
  Dim bytes = 0;
};

class MoveGain {
 public:
  MoveGain(const Graph& graph, const Selection& selection) : graph_(graph), selection_(selection) {}

  /// Of `node` computing only what is selected along `axis` of its results, from selected inputs. With `looks_ahead`,
  /// selections of inputs are moved on where that is better. Throws DimOverflow.
  Change of_crossing(const Node& node, std::size_t axis, const AxisMap& map, bool looks_ahead = true) const {
    return crossing(node, axis, map, looks_ahead ? kDepth : 0);
  }
  /// Bytes of what is selected from v.
  Dim selected_bytes(const Value& v, std::size_t axis) const;

 private:
  static constexpr int kDepth = 6;  // nodes looked at, one behind the other

  Change crossing(const Node& node, std::size_t axis, const AxisMap& map, int depth) const;
  Change having(const Value* x, std::size_t axis, const Node& reader, int depth) const;

  const Graph& graph_;
  const Selection& selection_;
};

/// Whether a selection may move in front of the node at all, given a map.
bool can_be_crossed(const Node& node);
bool drops_at_random(const Node& node);

}  // namespace backpass
