#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "passes/free_shapes.hpp"
#include "passes/lift_reshape.hpp"
#include "passes/list.hpp"
#include "passes/move_adjust.hpp"
#include "passes/move_gain.hpp"
#include "passes/selection_forms.hpp"

namespace backpass {
namespace {

/// A selection of the graph as it came, and how far it went.
struct Journey {
  std::string node;
  Dim count, whole;
  std::vector<std::string> crossed;
  Change change;
};

/// A node with everything that is to change when a selection moves in front of it.
struct Crossing {
  Node* node = nullptr;
  std::vector<Node*> selections;  ///< of its results
  Selection selection;
  AxisMap map;
  std::vector<Node*> shape_readers;
};

class Mover {
 public:
  explicit Mover(Graph& graph) : graph_(graph) {}

  bool run() {
    graph_.remove_dead_nodes();
    bool has_changed = false;
    while (prepare() || round()) has_changed = true;
    if (has_changed) graph_.sort_topologically();
    graph_.remove_dead_nodes();
    return has_changed;
  }

  void tell(Reports& reports) const {
    for (const Journey& j : journeys_) reports.push_back(told(j));
  }

 private:
  bool prepare() {
    const bool is_rewritten = rewrite_selections(graph_);
    return join_selections(graph_) || is_rewritten;
  }

  /// Selections further down first, so that those of one value meet.
  bool round() {
    std::vector<Node*> selections;
    for (Node* node : graph_.nodes()) {
      if (selection_of(*node)) selections.push_back(node);
    }
    bool has_moved = false;
    gone_.clear();
    for (auto it = selections.rbegin(); it != selections.rend(); ++it) {
      if (gone_.count(*it) == 0 && climb(*it)) has_moved = true;
    }
    return has_moved;
  }

  bool climb(Node* start) {
    std::vector<Node*> open{start};
    bool has_moved = false;
    while (!open.empty()) {
      Node* at = open.back();
      open.pop_back();
      if (gone_.count(at) != 0) continue;
      std::optional<Crossing> crossing = crossing_of(*at);
      if (!crossing) {
        if (lift(*at)) open.push_back(at);
        continue;
      }
      std::vector<Node*> made = cross(*crossing);
      for (Node* node : made) gone_.erase(node);
      open.insert(open.end(), made.begin(), made.end());
      has_moved = true;
    }
    return has_moved;
  }

  /// Rows are selected from what has several axes further up.
  bool lift(const Node& at) {
    const std::optional<Selection> selection = selection_of(at);
    Node* reshape = at.input(0)->producer;
    if (!selection || selection->axis != 0 || !selection->shrinks() || reshape == nullptr) return false;
    return graph_.only_reader(at.input(0)) == &at && lift_reshape(graph_, *reshape);
  }

  std::optional<Crossing> crossing_of(Node& at) const {
    const std::optional<Selection> selection = selection_of(at);
    Value* v = at.input(0);
    if (!selection || v->producer == nullptr || v->ints || !selection->shrinks()) return std::nullopt;
    Crossing c{v->producer, {}, *selection, {}, {}};
    const std::optional<AxisMap> map = axis_map(*c.node, selection->axis);
    if (!map || !can_be_crossed(*c.node) || !can_adjust(*c.node, selection->axis, *map, *selection))
      return std::nullopt;
    c.map = *map;
    if (!is_all_that_is_read(c) || !pays(c)) return std::nullopt;
    return c;
  }

  /// Every result is read by the same selection alone; fills in who that is.
  bool is_all_that_is_read(Crossing& c) const {
    for (Value* out : c.node->outputs) {
      if (out == nullptr || graph_.use_count(out) == 0) continue;
      if (graph_.is_output(out) || (out != c.node->output(0) && c.node->op != "Split")) return false;
      for (Node* reader : out->readers) {
        if (is_op(reader, "Shape") && can_free_shape(graph_, *reader)) {
          c.shape_readers.push_back(reader);
          continue;
        }
        const std::optional<Selection> other = reader->input(0) == out ? selection_of(*reader) : std::nullopt;
        const bool is_same = other && other->axis == c.selection.axis && selects_the_same(*other, c.selection);
        if (!is_same || std::count(reader->inputs.begin(), reader->inputs.end(), out) > 1) return false;
        c.selections.push_back(reader);
      }
    }
    return true;
  }

  bool pays(const Crossing& c) const {
    try {
      if (!may_change_places(c)) return false;
      const Change change = total(c, true);
      return c.selection.is_saving(change.operations, change.bytes);
    } catch (const DimOverflow&) {
      return false;
    }
  }

  /// Two selections would overtake each other for ever if each expected to save by it: the one along the earlier axis
  /// goes first.
  static bool may_change_places(const Crossing& c) {
    const std::optional<Selection> other = selection_of(*c.node);
    return !other || !c.map[0] || *c.map[0] < other->axis;
  }

  Change total(const Crossing& c, bool looks_ahead) const {
    const MoveGain gain(graph_, c.selection);
    Change change = gain.of_crossing(*c.node, c.selection.axis, c.map, looks_ahead);
    for (const Node* node : c.selections) {
      change.bytes = change.bytes - gain.selected_bytes(*node->input(0), c.selection.axis);
    }
    return change;
  }

  /// Returns the selections of the node's inputs.
  std::vector<Node*> cross(Crossing& c) {
    const std::size_t number = noted(c);
    for (Node* reader : c.shape_readers) free_shape(graph_, *reader);
    if (c.node->name.empty() && c.node->output(0) != nullptr) c.node->name = c.node->output(0)->name;
    adjust(graph_, *c.node, c.selection.axis, c.map, c.selection);
    std::vector<Node*> made;
    for (std::size_t i = 0; i < c.map.size(); ++i) {
      if (!c.map[i]) continue;
      Builder b(graph_, c.node, c.node->name);
      Value* part = c.selection.of(b, c.node->input(i), *c.map[i]);
      graph_.set_input(*c.node, i, part);
      made.push_back(part->producer);
      journey_.emplace(part->producer, number);
    }
    infer_node(graph_, *c.node);
    for (Node* node : c.selections) bypass(*node, c.selection.axis);
    return made;
  }

  /// What the selection gave is what it reads now, but for an axis that it takes away.
  void bypass(Node& node, std::size_t axis) {
    Value* v = node.input(0);
    Value* out = node.output(0);
    journey_.erase(&node);
    gone_.insert(&node);
    const bool takes_axis = out->type.shape->size() < v->type.shape->size();
    const bool is_output = graph_.is_output(out);
    if (takes_axis || (is_output && graph_.is_output(v))) {
      Builder b(graph_, &node, node.name);
      node.attributes.clear();
      std::vector<Value*> reads{v};
      if (takes_axis) reads.push_back(b.ints({static_cast<std::int64_t>(axis)}));
      return graph_.rewrite(node, "", takes_axis ? "Squeeze" : "Identity", reads);
    }
    const std::string name = out->name;
    graph_.rename(out, name + "/moved");
    graph_.replace_uses(out, v);
    graph_.remove_node(&node);
    if (is_output) graph_.rename(v, name);
  }

  /// Adds a crossing to the journey of the selection, and says which one that is.
  std::size_t noted(const Crossing& c) {
    Node* first = c.selections.front();
    const auto [it, is_new] = journey_.emplace(first, journeys_.size());
    if (is_new) journeys_.push_back({first->label(), c.selection.count, c.selection.whole, {}, {}});
    const std::size_t number = it->second;
    Journey& journey = journeys_[number];
    journey.crossed.push_back(c.node->label());
    try {
      Crossing as_written = c;
      as_written.selection.most = c.selection.count;
      const Change change = total(as_written, false);
      journey.change = {journey.change.operations + change.operations, journey.change.bytes + change.bytes};
    } catch (const DimOverflow&) {
    }
    return number;
  }

  static Report told(const Journey& j) {
    constexpr std::size_t kNamed = 8;
    std::string way;
    for (std::size_t i = 0; i < std::min(j.crossed.size(), kNamed); ++i) way += (i > 0 ? ", " : "") + j.crossed[i];
    if (j.crossed.size() > kNamed) way += concat(" and ", j.crossed.size() - kNamed, " more");
    return {.node = j.node,
            .what = "moved " + j.node + " in front of " + way,
            .why = concat("each of them computes places along the axis one by one, and only ", j.count.str(), " of ",
                          j.whole.str(), " are read"),
            .operations_saved = (Dim(0) - j.change.operations).str(),
            .bytes_saved = (Dim(0) - j.change.bytes).str()};
  }

  Graph& graph_;
  std::vector<Journey> journeys_;
  std::unordered_map<const Node*, std::size_t> journey_;  // which one a selection is on
  std::unordered_set<const Node*> gone_;
};

}  // namespace

void move_slices(Graph& graph, Reports& reports) {
  Mover mover(graph);
  if (mover.run()) mover.tell(reports);
}

}  // namespace backpass
