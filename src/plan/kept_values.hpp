// Which values of the first half of a training graph the second half should keep, and which it should compute again.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/halves.hpp"
#include "plan/nominal_sizes.hpp"
#include "support/min_cut.hpp"

namespace backpass {

using ConstValues = std::unordered_set<const Value*>;

/// Whether a node only moves elements, or works on them one by one or row by row: fit to be repeated.
bool is_cheap(const Node& node);

/// Whether nobody needs the value who reads it: all of them, in the second half, `later`, can make it again themselves
/// (graph/substitute.hpp).
bool is_dispensable(const Graph& graph, const NodeSet& later, const Value& v);

/// What the second half reads of the first, by the memory it reads; not what it reads the extents of.
struct LaterReads {
  ConstValues all;
  ConstValues fixed;  ///< stay as they are: bodies of control flow see them, or readers are far apart

  LaterReads(const Graph& graph, const NodeSet& later);
};

/// Finds values, none of them a view, that are to be computed again where the second half, `later`, reads them or
/// something that is computed again from them. What they are computed from is kept, or computed again in turn.
///
/// They are a minimum cut between the first half and its readers in the second. To keep a value costs its bytes, unless
/// it is there anyway: parameters, constants, outputs. To repeat a node costs a fraction of the bytes it writes; of
/// what is no cheap node only products of what is given can be repeated, if they are next to nothing of all there is to
/// compute. What is dispensable costs its readers next to nothing.
class RepeatChoice {
 public:
  /// Both must outlive it and not change.
  RepeatChoice(const Graph& graph, const NodeSet& later);

  ConstValues run();

  /// From now on the value is not computed again.
  void keep(const Value* v) { fixed_.insert(v); }

 private:
  /// The two ends of a value, the edge between them being what it costs to keep.
  struct Ends {
    int in;
    int out;
  };

  void find_dispensable();
  bool is_free(const Value* v) const;
  bool is_unavailable(const Value* v) const;
  std::int64_t bytes(const Value* v) const;
  std::int64_t cost(const Value* v) const;
  bool can_repeat(const Value* v) const;
  bool is_small_product(const Node& node) const;
  const std::vector<Value*>& sources(const Value* v) const;
  Ends ends_of(const Value* v);
  void add(const Value* v);
  ConstValues cut();
  void add_chain(const Value* v, const ConstValues& repeated, ConstValues& chain) const;
  bool fix_long_chains(ConstValues repeated);

  const Graph& graph_;
  const NodeSet& later_;
  NominalSizes sizes_;
  LaterReads reads_;
  ConstValues fixed_;
  ConstValues outputs_;
  ConstValues readable_;  // what readers of dispensable values would read instead
  std::unordered_map<const Value*, std::vector<Value*>> dispensable_;
  bool is_paused_ = false;
  std::int64_t operations_ = 0;  // of all products
  FlowNetwork network_;
  int source_ = 0;
  std::unordered_map<const Value*, Ends> ends_;
};

}  // namespace backpass
