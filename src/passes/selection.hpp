// A node that takes some places along one axis of a tensor: Gather with a list of places or one, Slice along an axis.
#pragma once

#include <optional>
#include <string>

#include "graph/builder.hpp"
#include "graph/graph.hpp"

namespace backpass {

struct Selection {
  std::size_t axis = 0;
  bool keeps_axis = true;   ///< false: one place, and the axis is gone
  Value* places = nullptr;  ///< a list of them, or one number; null for a Slice
  bool from_front = false;  ///< a negative place is an error, as kIndicesFromFront says
  Value* start = nullptr;   ///< of a Slice, lists of one number
  Value* end = nullptr;
  Value* step = nullptr;  ///< null: 1
  Dim whole;              ///< the extent it selects from
  Dim count;              ///< how many places
  /// Of `count`, an expression that is provably no more than `whole` where that follows from how places are made.
  Dim most;

  /// Leaves places out, whatever symbols stand for.
  bool shrinks() const { return !(count == whole) && surely_at_most(most, whole); }
  bool is_constant() const;

  /// a <= b for the extents that are to be expected: none is 0, and a fixed number of places is a quarter of an axis
  /// at most whose extent may be anything.
  bool is_no_more(const Dim& a, const Dim& b) const;
  /// Less of something, and not more of anything.
  bool is_saving(const Dim& operations, const Dim& bytes) const;

  /// The places of an axis of x, which stays there. What does that already is used again.
  Value* of(Builder& b, Value* x, std::size_t along) const;
  /// Null when there is none.
  Value* found(const Value* x, std::size_t along) const;
};

/// What a node selects; nothing when it is no selection of this kind.
std::optional<Selection> selection_of(const Node& node);

/// Whether both take the same places, be it of different axes.
bool selects_the_same(const Selection& a, const Selection& b);

}  // namespace backpass
