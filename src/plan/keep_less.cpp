#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "graph/clone.hpp"
#include "graph/op.hpp"
#include "graph/substitute.hpp"
#include "ops/custom/yield.hpp"
#include "plan/kept_values.hpp"
#include "plan/lower.hpp"
#include "plan/peak_estimate.hpp"

namespace backpass {
namespace {

/// Copies nodes of the first half for readers in the second. Each value is copied right before its first reader, for
/// all of them. On the way to another value it is copied once per stretch of cheap nodes, where they become one tile
/// program: what is read much later is rather computed twice than kept in between. A product is never computed more
/// than once.
class Repetition {
 public:
  Repetition(Graph& graph, const NodeSet& later, const ConstValues& again)
      : graph_(graph), later_(later), again_(again) {
    for (const Value* v : again) {
      if (is_dispensable(graph, later, *v)) dispensable_.insert(v);
    }
  }

  void run() {
    const std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      if (later_.count(node) == 0) continue;
      if (!is_yield(*node) && !reads_extents_only(*node)) redirect(*node);
      if (!is_cheap(*node)) ++stretch_;
    }
  }

  /// Which value of the first half a copy stands for.
  const std::map<const Value*, const Value*>& originals() const { return originals_; }

 private:
  struct Copy {
    Value* value;
    int stretch;
    bool is_read;  ///< by the second half itself
  };

  bool is_repeated(Value* v) const { return again_.count(memory_of(v)) != 0; }

  void redirect(Node& reader) {
    const std::vector<Value*> reads = reader.inputs;
    for (Value* v : reads) {
      if (v != nullptr && dispensable_.count(v) != 0) do_without(reader, *v);
    }
    for (std::size_t i = 0; i < reader.inputs.size(); ++i) {
      Value* v = reader.inputs[i];
      if (v != nullptr && is_repeated(v)) graph_.set_input(reader, i, copy_of(v, reader, true));
    }
  }

  void do_without(Node& reader, Value& v) {
    substitute(graph_, reader, *substitute_for(reader, v));
    if (!v.readers.empty()) return;
    std::vector<Value*>& outputs = v.producer->outputs;
    std::replace(outputs.begin(), outputs.end(), &v, static_cast<Value*>(nullptr));
    while (outputs.back() == nullptr) outputs.pop_back();
  }

  Value* copy_of(Value* v, const Node& before, bool is_read) {
    if (!is_repeated(v)) return v;
    auto it = copies_.find(v);
    const bool is_for_all = !is_cheap(*v->producer) || (it != copies_.end() && is_read && it->second.is_read);
    const bool is_there = it != copies_.end() && (it->second.stretch == stretch_ || is_for_all);
    if (!is_there) {
      copy(*v->producer, before);
      it = copies_.find(v);
    }
    it->second.is_read = it->second.is_read || is_read;
    return it->second.value;
  }

  void copy(const Node& node, const Node& before) {
    std::vector<Value*> reads;
    for (Value* v : node.inputs) reads.push_back(v == nullptr ? nullptr : copy_of(v, before, false));
    std::vector<Value*> writes;
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      Value* v = node.outputs[k];
      const bool is_wanted = v != nullptr && (k == 0 || (is_repeated(v) && dispensable_.count(v) == 0));
      writes.push_back(is_wanted ? graph_.add_value(v->name + "_again", v->type) : nullptr);
      if (!is_wanted) continue;
      writes.back()->ints = v->ints;
      originals_.emplace(writes.back(), memory_of(v));
      copies_.insert_or_assign(v, Copy{writes.back(), stretch_, false});
    }
    while (writes.back() == nullptr) writes.pop_back();
    // By its name a random node draws the same numbers.
    Node* made = graph_.add_node(node.op, reads, writes, name_of_copy(node), node.domain, &before);
    made->attributes = node.attributes;
    made->def = node.def;
  }

  Graph& graph_;
  const NodeSet& later_;
  const ConstValues& again_;
  ConstValues dispensable_;  // of those
  std::map<const Value*, Copy> copies_;
  std::map<const Value*, const Value*> originals_;
  int stretch_ = 0;
};

/// The values of the first half that are kept for the second, in the order they are computed in.
std::vector<const Value*> kept_values(const Graph& graph) {
  const NodeSet later = second_half(graph);
  const LaterReads reads(graph, later);
  ConstValues outputs;
  for (const Value* v : graph.outputs) outputs.insert(memory_of(v));
  std::vector<const Value*> found;
  for (const Node* node : graph.nodes()) {
    if (later.count(node) != 0) continue;
    for (const Value* v : node->outputs) {
      if (v != nullptr && reads.all.count(v) != 0 && outputs.count(v) == 0) found.push_back(v);
    }
  }
  return found;
}

/// What a choice would come to, tried in a copy of the graph. Values are known by their names: fusions let some go.
class Trial {
 public:
  Trial(const Graph& graph, const NodeSet& later, const ConstValues& again) {
    const Clone copy = clone(graph);
    NodeSet copied_later;
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      if (later.count(graph.nodes()[i]) != 0) copied_later.insert(copy.graph->nodes()[i]);
    }
    ConstValues copied_again;
    for (const Value* v : again) copied_again.insert(copy.of(v));
    Repetition repetition(*copy.graph, copied_later, copied_again);
    repetition.run();
    for (const auto& [made, original] : repetition.originals()) repeated_.emplace(made->name, original->name);
    Reports unread;
    fuse_linear(*copy.graph, unread);
    fuse_tiles(*copy.graph, unread);
    const PeakEstimate peak = estimate_peak(*copy.graph, NominalSizes(*copy.graph));
    bytes_ = peak.bytes;
    for (const Value* v : peak.there) there_.insert(v->name);
  }

  std::int64_t peak() const { return bytes_; }

  /// Those of `again` that take part in the peak: copies are there, or what they are made from is there for their sake.
  std::vector<const Value*> to_blame(const Graph& graph, const ConstValues& again, const ConstValues& kept) const {
    std::set<std::string> copies;
    for (const std::string& name : there_) {
      if (const auto it = repeated_.find(name); it != repeated_.end()) copies.insert(it->second);
    }
    auto is_added = [&](const Value* v) {
      return v != nullptr && kept.count(memory_of(v)) == 0 && there_.count(memory_of(v)->name) != 0;
    };
    std::vector<const Value*> found;
    for (const Node* node : graph.nodes()) {
      const bool any = std::any_of(node->inputs.begin(), node->inputs.end(), is_added);
      for (const Value* v : node->outputs) {
        if (v != nullptr && again.count(v) != 0 && (any || copies.count(v->name) != 0)) found.push_back(v);
      }
    }
    return found;
  }

 private:
  std::map<std::string, std::string> repeated_;  // copies, and what they are copies of
  std::int64_t bytes_ = 0;
  std::set<std::string> there_;
};

/// The cheapest choice that does not need more memory at once than to keep everything. Of what makes it need more the
/// largest is kept, and if that was not enough, twice as many.
ConstValues choose(const Graph& graph, const NodeSet& later, const ConstValues& kept) {
  RepeatChoice choice(graph, later);
  ConstValues again = choice.run();
  if (again.empty()) return again;
  const NominalSizes sizes(graph);
  const std::int64_t most = Trial(graph, later, {}).peak();
  for (std::size_t count = 1; !again.empty(); count *= 2) {
    const Trial trial(graph, later, again);
    if (trial.peak() <= most) return again;
    std::vector<const Value*> blamed = trial.to_blame(graph, again, kept);
    if (blamed.empty()) return {};
    std::stable_sort(blamed.begin(), blamed.end(), [&](const Value* a, const Value* b) {
      return sizes.bytes(*a).value_or(0) > sizes.bytes(*b).value_or(0);
    });
    blamed.resize(std::min(blamed.size(), count));
    for (const Value* v : blamed) choice.keep(v);
    again = choice.run();
  }
  return again;
}

/// One line for each value that is no longer kept, and for each that is kept in their place.
void report(const std::vector<const Value*>& before, const std::vector<const Value*>& after, Reports& reports) {
  const ConstValues was(before.begin(), before.end());
  const ConstValues is(after.begin(), after.end());
  for (const Value* v : before) {
    if (is.count(v) != 0) continue;
    const std::string label = v->producer->label();
    reports.push_back({.node = label,
                       .what = concat("'", v->name, "' of ", label, " is computed again instead of kept"),
                       .why = "it follows from what is kept, and to compute it is cheaper than to keep it",
                       .bytes_saved = bytes_of(v)});
  }
  for (const Value* v : after) {
    if (was.count(v) != 0) continue;
    const std::string label = v->producer->label();
    reports.push_back({.node = label,
                       .what = concat("'", v->name, "' of ", label, " is kept to compute others from it"),
                       .why = "they follow from it, and together they are more to keep",
                       .bytes_saved = lost_bytes_of(*v)});
  }
}

}  // namespace

void keep_less(Graph& graph, Reports& reports) {
  const NodeSet later = second_half(graph);
  if (later.empty()) return;
  const std::vector<const Value*> before = kept_values(graph);
  const ConstValues again = choose(graph, later, {before.begin(), before.end()});
  if (again.empty()) return;
  Repetition(graph, later, again).run();
  report(before, kept_values(graph), reports);
}

}  // namespace backpass
