// Which rows of each value somebody needs: found from the end of a graph to its beginning.
//
// A reader that chooses rows needs those of its input; one that treats rows one by one needs of its inputs what is
// needed of its outputs; attention needs queries as its result, and keys and values of all rows that a needed query
// sees. Everybody else, and the graph's outputs, need a value whole, and so everything it is computed from.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "passes/attention_site.hpp"
#include "passes/row_operands.hpp"
#include "passes/row_selection.hpp"

namespace backpass {

/// Sequences that attention runs over: rows are numbered sequence by sequence.
struct RowSpace {
  Dim batch, length;

  Dim count() const { return batch * length; }
};

/// Some rows. Either those that a selection gives (of these, the rows that another set chooses of its result), or all
/// that are needed of a space.
struct RowSet {
  const RowSelection* selection = nullptr;
  const RowSet* of_result = nullptr;
  const RowSpace* space = nullptr;
};

struct RowNeed {
  const RowSet* set = nullptr;
  RowLayout layout;
  const RowSelection* origin = nullptr;  ///< whose numbering of rows it is; null: that of attention
};

class RowNeeds {
 public:
  /// Without `spaces`, every selection of fewer rows is a set of its own and attention needs all its keys. With them,
  /// selections and keys need the set of their space.
  RowNeeds(Graph& graph, std::vector<RowSpace> spaces);
  RowNeeds(const RowNeeds&) = delete;
  RowNeeds& operator=(const RowNeeds&) = delete;

  struct Site {
    AttentionSite attention;
    const RowSet* queries = nullptr;  ///< null: all
    const RowSet* keys = nullptr;
  };
  struct Selection {
    RowSelection selection;
    RowNeed of_data;
    const RowSet* of_result = nullptr;  ///< null: all it gives
  };

  /// What is needed of a value, when that is not all of it.
  const RowNeed* need(const Value* v) const;
  /// Whether a node can compute its results for some rows alone, and is asked for no others.
  const std::vector<RowOperand>* operands(const Node* node) const;
  std::vector<Site>& sites() { return sites_; }
  const std::vector<Site>& sites() const { return sites_; }
  const std::vector<Selection>& selections() const { return selections_; }
  const std::vector<RowSpace>& spaces() const { return spaces_; }
  const RowSet* set_of(const RowSpace& space) const;

  /// Of a space: who wants all its rows, as a sentence; empty: nobody.
  std::string obstacle(const RowSpace& space) const;

 private:
  void find_sites();
  void sweep();
  bool flip_one();
  void visit(Node& node);
  bool visit_selection(const RowSelection& selection);
  void visit_site(Site& site);
  bool visit_rows(Node& node);
  void want_whole(const Value* v, const Node* reader);
  void want_inputs_whole(const Node& node);
  void want(const Value* v, const RowNeed& wanted, const Node* reader);
  bool is_wanted(const Value* v) const;
  bool can_pack(const Node& node, const RowNeed& wanted, const std::vector<RowOperand>& operands) const;
  void want_rest(const AttentionSite& site);
  void want_all_of(const AttentionSite& site);
  bool fits(const AttentionLayouts& layouts) const;
  static std::optional<AttentionLayouts> layouts_of_keys(const AttentionSite& site);
  const RowSpace* space_of_keys(const Site& site, const AttentionLayouts& layouts) const;
  std::optional<RowNeed> need_in_space(const RowSelection& selection);
  std::string path_from(const Value* v) const;

  Graph& graph_;
  ExtentValues extents_;
  std::vector<RowSpace> spaces_;
  std::deque<RowSet> space_sets_, sets_;
  std::deque<RowSelection> choosers_;
  std::vector<Site> sites_;
  std::unordered_map<const Node*, std::size_t> site_of_;  // by result
  std::unordered_set<const Node*> inside_;                // of sites, results aside
  std::unordered_set<const Node*> flipped_;               // selections of rows numbered position by position
  std::unordered_map<const Value*, RowNeed> needs_;
  std::unordered_map<const Value*, const Node*> whole_;  // and who wants it; null: it is an output
  std::unordered_map<const Node*, std::vector<RowOperand>> operands_;
  std::vector<Selection> selections_;
  const RowSelection* conflict_ = nullptr;
};

}  // namespace backpass
