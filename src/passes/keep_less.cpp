#include <map>
#include <utility>

#include "graph/op.hpp"
#include "ops/custom/yield.hpp"
#include "passes/kept_values.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

/// Copies nodes of the first half for readers in the second. Each value is copied right before its first reader, for
/// all of them. On the way to another value it is copied once per stretch of cheap nodes, where they become one tile
/// program: what is read much later is rather computed twice than kept in between.
class Repetition {
 public:
  Repetition(Graph& graph, const NodeSet& later, const std::unordered_set<const Value*>& again)
      : graph_(graph), later_(later), again_(again) {}

  void run(Reports& reports) {
    const std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      if (later_.count(node) == 0) continue;
      if (!is_yield(*node) && !reads_extents_only(*node)) redirect(*node, reports);
      if (!is_cheap(*node)) ++stretch_;
    }
  }

 private:
  struct Copy {
    Value* value;
    int stretch;
    bool is_read;  ///< by the second half itself
  };

  bool is_repeated(Value* v) const { return again_.count(memory_of(v)) != 0; }

  void redirect(Node& reader, Reports& reports) {
    for (std::size_t i = 0; i < reader.inputs.size(); ++i) {
      Value* v = reader.inputs[i];
      if (v == nullptr || !is_repeated(v)) continue;
      Value* memory = memory_of(v);
      const bool is_new = reported_.insert(memory).second;
      graph_.set_input(reader, i, copy_of(v, reader, true));
      if (!is_new) continue;
      const std::string label = memory->producer->label();
      reports.push_back({.node = label,
                         .what = concat("'", memory->name, "' of ", label, " is computed again instead of kept"),
                         .why = "it follows from what is kept, and to compute it is cheaper than to keep it",
                         .bytes_saved = bytes_of(memory)});
    }
  }

  Value* copy_of(Value* v, const Node& before, bool is_read) {
    if (!is_repeated(v)) return v;
    auto it = copies_.find(v);
    const bool is_there = it != copies_.end() && (it->second.stretch == stretch_ || (is_read && it->second.is_read));
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
      const bool is_wanted = v != nullptr && (k == 0 || is_repeated(v));
      writes.push_back(is_wanted ? graph_.add_value(v->name + "_again", v->type) : nullptr);
      if (!is_wanted) continue;
      writes.back()->ints = v->ints;
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
  const std::unordered_set<const Value*>& again_;
  std::map<const Value*, Copy> copies_;
  std::unordered_set<const Value*> reported_;
  int stretch_ = 0;
};

}  // namespace

void keep_less(Graph& graph, Reports& reports) {
  const NodeSet later = second_half(graph);
  if (later.empty()) return;
  const std::unordered_set<const Value*> again = values_to_repeat(graph, later);
  if (!again.empty()) Repetition(graph, later, again).run(reports);
}

}  // namespace backpass
