#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "ops/pointwise/fused_tile.hpp"
#include "ops/pointwise/tile_op.hpp"
#include "plan/lower.hpp"
#include "plan/tile_groups.hpp"

namespace backpass {
namespace {

class Replacement {
 public:
  Replacement(Graph& graph, const TileGroup& group)
      : graph_(graph), group_(group), members_(group.nodes.begin(), group.nodes.end()) {
    for (Node* node : graph.nodes()) {
      if (members_.count(node) != 0) nodes_.push_back(node);
    }
  }

  Report run() {
    collect();
    const TileProgram program = write();
    Node* last = nodes_.back();
    Node* tile = graph_.add_node("Tile", inputs_, outputs_, last->name, "backpass", last);
    set_tile_program(*tile, program, group_.shape.size());
    for (Node* node : nodes_) {
      // The values live on as outputs of the new node.
      if (std::find(outputs_.begin(), outputs_.end(), node->outputs[0]) != outputs_.end()) node->outputs.clear();
    }
    return {.node = tile->label(),
            .what = concat("fused ", nodes_.size(), " nodes into ", tile->label(), ": ", program.str()),
            .why = "what passes between them stays in the cache",
            .bytes_saved = bytes_of(inner_)};
  }

 private:
  void collect() {
    std::set<Value*> seen;
    for (Node* node : nodes_) {
      for (Value* v : tile_operands(*node)) {
        bool inside = v == nullptr || members_.count(v->producer) != 0 || is_immediate(*v);
        if (!inside && seen.insert(v).second) inputs_.push_back(v);
      }
      Value* out = node->outputs[0];
      const bool is_read_outside =
          std::any_of(out->readers.begin(), out->readers.end(), [&](const Node* n) { return members_.count(n) == 0; });
      if (is_read_outside || graph_.is_output(out)) {
        outputs_.insert(outputs_.begin(), out);  // the last one first: it can be written where an input is
      } else {
        inner_.push_back(out);
      }
    }
  }

  // Whether the value has an element per row only.
  TileShape shape_of(const Value& v) const {
    const Shape& shape = *v.type.shape;
    bool is_row = group_.has_rows && (shape.empty() || shape.back().is(1));
    return is_row ? TileShape::row : TileShape::full;
  }

  TileProgram write() {
    TileBuilder builder(inputs_.size());
    std::unordered_map<const Value*, TileRegister> registers;
    auto load = [&](const Value* v) {
      if (is_immediate(*v)) return builder.immediate(*v->constant);
      auto index = std::find(inputs_.begin(), inputs_.end(), v) - inputs_.begin();
      return builder.input(static_cast<std::size_t>(index), v->type.dtype, shape_of(*v));
    };
    auto operand = [&](const Value* v) {
      if (v == nullptr) return kNoRegister;
      auto it = registers.find(v);
      return it != registers.end() ? it->second : registers.emplace(v, load(v)).first->second;
    };
    for (const Node* node : nodes_) {
      std::vector<TileRegister> operands;
      for (const Value* v : tile_operands(*node)) operands.push_back(operand(v));
      const TileReduction* reduction = row_reduction(*node);
      registers[node->outputs[0]] =
          reduction != nullptr ? builder.reduce(*reduction, operands[0]) : emit_tile(*node, operands, builder);
    }
    for (const Value* v : outputs_) builder.output(registers.at(v), v->type.dtype, shape_of(*v));
    return builder.finish();
  }

  Graph& graph_;
  const TileGroup& group_;
  std::set<const Node*> members_;
  std::vector<Node*> nodes_;  // in execution order
  std::vector<Value*> inputs_;
  std::vector<Value*> outputs_;
  std::vector<Value*> inner_;
};

}  // namespace

void fuse_tiles(Graph& graph, Reports& reports) {
  std::vector<TileGroup> groups = find_tile_groups(graph);
  if (groups.empty()) return;
  for (const TileGroup& group : groups) reports.push_back(Replacement(graph, group).run());
  graph.sort_topologically();
  graph.remove_dead_nodes();
}

}  // namespace backpass
