#include "plan/tile_groups.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graph/effects.hpp"
#include "graph/halves.hpp"
#include "graph/op.hpp"
#include "kernels/tile_reduce.hpp"
#include "ops/pointwise/tile_op.hpp"

namespace backpass {
namespace {

constexpr std::size_t kMaxInstructions = 32;
constexpr std::size_t kMaxInputs = 16;

// ---- What can be fused

// A row is the work of one thread and its tiles should stay in cache, so a few long rows are better off with the kernel
// that cuts them up.
bool rows_suit(const Shape& shape) {
  constexpr std::int64_t kMaxRow = 32768;
  constexpr std::int64_t kFewRows = 4;
  const Dim& length = shape.back();
  if (length.is(1) || (length.is_known() && length.value() > kMaxRow)) return false;
  const Dim rows = product(std::span(shape).first(shape.size() - 1));
  return length.is_known() || !rows.is_known() || rows.value() >= kFewRows;
}

// The operand's extents are the output's or 1, whatever the symbols stand for.
bool surely_broadcasts(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is(1) && !(from[i] == to[to.size() - from.size() + i])) return false;
  }
  return true;
}

// The program of this node alone shows whether every function has a loop for these element types.
std::optional<std::size_t> instruction_count(const Node& node) {
  TileBuilder builder(node.inputs.size());
  std::vector<TileRegister> registers;
  try {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Value* v = node.inputs[i];
      registers.push_back(v == nullptr ? kNoRegister : builder.input(i, v->type.dtype));
    }
    emit_tile(node, registers, builder);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
  return builder.size();
}

// Instructions the node takes in a program, if it can be part of one.
std::optional<std::size_t> fusable_size(const Node& node) {
  if (row_reduction(node) != nullptr) return 1;
  if (node.def == nullptr || node.def->tile == nullptr || node.outputs.size() != 1) return std::nullopt;
  const Value& out = *node.outputs[0];
  if (!out.type.is_tensor() || !out.type.shape || !is_tile_type(out.type.dtype) || out.ints) return std::nullopt;
  if (!is_float(out.type.dtype) && out.type.shape->size() <= 1) return std::nullopt;
  for (const Value* v : node.inputs) {
    if (v == nullptr) continue;
    if (!v->type.is_tensor() || !v->type.shape || !is_tile_type(v->type.dtype)) return std::nullopt;
    if (!surely_broadcasts(*v->type.shape, *out.type.shape)) return std::nullopt;
  }
  return instruction_count(node);
}

// ---- Which nodes go together

// A node, or a group of nodes that will become one. `position` keeps every unit behind those it reads from.
struct Unit : TileGroup {
  std::size_t instructions = 0;  // 0: cannot be fused
  std::size_t position = 0;
  std::size_t effects_before = 0;  // a group that reached over one could have to run on both sides of it
};

Unit unit_of(Node* node, std::size_t position) {
  Unit unit;
  unit.nodes = {node};
  unit.position = position;
  std::optional<std::size_t> size = fusable_size(*node);
  if (!size) return unit;
  unit.instructions = std::max<std::size_t>(1, *size);
  unit.has_rows = row_reduction(*node) != nullptr;
  unit.shape = *(unit.has_rows ? node->inputs : node->outputs)[0]->type.shape;
  return unit;
}

Shape rows_of(Shape shape) {
  if (!shape.empty()) shape.back() = Dim(1);
  return shape;
}

// What two units would work on together, if they can.
const Shape* common_shape(const Unit& a, const Unit& b) {
  if (a.shape == b.shape) return &a.shape;
  if (a.has_rows && !b.has_rows && b.shape == rows_of(a.shape)) return &a.shape;
  if (b.has_rows && !a.has_rows && a.shape == rows_of(b.shape)) return &b.shape;
  return nullptr;
}

class Grouping {
 public:
  explicit Grouping(Graph& graph) : graph_(graph), later_(second_half(graph)) {
    std::size_t effects = 0;
    for (Node* node : graph.nodes()) {
      units_.push_back(std::make_unique<Unit>(unit_of(node, units_.size())));
      units_.back()->effects_before = effects;
      if (has_effect(*node)) ++effects;
      unit_of_[node] = units_.back().get();
    }
  }

  std::vector<TileGroup> run() {
    for (Node* node : graph_.nodes()) {
      if (unit_of_[node]->instructions == 0) continue;
      for (Value* v : node->inputs) {
        if (v == nullptr || v->producer == nullptr) continue;
        Unit* from = unit_of_[v->producer];
        Unit* to = unit_of_[node];
        if (from != to && suits(*from, *to)) try_merge(*from, *to);
      }
    }
    std::vector<TileGroup> groups;
    for (const auto& unit : units_) {
      if (unit->nodes.size() > 1) groups.push_back(*unit);
    }
    return groups;
  }

 private:
  bool suits(const Unit& a, const Unit& b) const {
    if (later_.count(a.nodes.front()) != later_.count(b.nodes.front())) return false;
    if (a.effects_before != b.effects_before) return false;
    if (a.instructions == 0 || a.instructions + b.instructions > kMaxInstructions) return false;
    if (common_shape(a, b) == nullptr) return false;
    std::set<const Value*> inputs;
    for (const Unit* unit : {&a, &b}) {
      for (const Node* node : unit->nodes) {
        for (const Value* v : tile_operands(*node)) {
          if (v == nullptr || is_immediate(*v)) continue;
          bool inside = v->producer != nullptr && is_in(v->producer, a, b);
          if (!inside) inputs.insert(v);
        }
      }
    }
    return !inputs.empty() && inputs.size() <= kMaxInputs;
  }

  bool is_in(const Node* node, const Unit& a, const Unit& b) const {
    const Unit* unit = unit_of_.at(node);
    return unit == &a || unit == &b;
  }

  template <class F>
  void for_each_source(const Unit& unit, F&& f) const {
    for (const Node* node : unit.nodes) {
      for_each_read(*node, [&](const Value* v) {
        if (v->producer != nullptr) f(unit_of_.at(v->producer));
      });
    }
  }

  template <class F>
  void for_each_reader(const Unit& unit, F&& f) const {
    for (const Node* node : unit.nodes) {
      for (const Node* reader : node->outputs[0]->readers) f(unit_of_.at(reader));
    }
  }

  // `from` is read by `to`. Together they must not be both before and after something else.
  void try_merge(Unit& from, Unit& to) {
    bool readers_follow = true;
    for_each_reader(from, [&](const Unit* u) { readers_follow &= u == &from || u->position >= to.position; });
    bool sources_precede = true;
    for_each_source(to, [&](const Unit* u) { sources_precede &= u == &to || u->position <= from.position; });
    if (readers_follow) {
      merge(from, to, to.position);
    } else if (sources_precede) {
      merge(from, to, from.position);
    } else if (!depends_indirectly(to, from)) {
      merge(from, to, to.position);
      renumber();
    }
  }

  // A path from `source` to `unit` through a third one. Units placed before `source` cannot be on it.
  bool depends_indirectly(const Unit& unit, const Unit& source) const {
    std::set<const Unit*> seen;
    std::vector<const Unit*> stack;
    auto visit = [&](const Unit* u) {
      if (u != &unit && u->position >= source.position && seen.insert(u).second) stack.push_back(u);
    };
    for_each_source(unit, [&](const Unit* u) {
      if (u != &source) visit(u);
    });
    while (!stack.empty()) {
      const Unit* u = stack.back();
      stack.pop_back();
      if (u == &source) return true;
      for_each_source(*u, visit);
    }
    return false;
  }

  void merge(Unit& from, Unit& to, std::size_t position) {
    to.shape = Shape(*common_shape(from, to));
    to.has_rows = to.has_rows || from.has_rows;
    for (Node* node : from.nodes) unit_of_[node] = &to;
    to.nodes.insert(to.nodes.end(), from.nodes.begin(), from.nodes.end());
    to.instructions += from.instructions;
    to.position = position;
    from.nodes.clear();
    from.instructions = 0;
  }

  // New positions in an order that fits the merged units, close to the old one.
  void renumber() {
    std::unordered_map<const Unit*, std::size_t> pending;
    std::unordered_map<const Unit*, std::vector<Unit*>> readers;
    using Entry = std::pair<std::size_t, Unit*>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (const auto& unit : units_) {
      if (unit->nodes.empty()) continue;
      std::set<const Unit*> sources;
      for_each_source(*unit, [&](const Unit* u) {
        if (u != unit.get()) sources.insert(u);
      });
      pending[unit.get()] = sources.size();
      for (const Unit* u : sources) readers[u].push_back(unit.get());
      if (sources.empty()) ready.emplace(unit->position, unit.get());
    }
    std::size_t next = 0;
    while (!ready.empty()) {
      Unit* unit = ready.top().second;
      ready.pop();
      for (Unit* reader : readers[unit]) {
        if (--pending[reader] == 0) ready.emplace(reader->position, reader);
      }
      unit->position = next++;
    }
  }

  Graph& graph_;
  NodeSet later_;  // what the second half computes must not be computed in the first, and kept
  std::vector<std::unique_ptr<Unit>> units_;
  std::unordered_map<const Node*, Unit*> unit_of_;
};

}  // namespace

const TileReduction* row_reduction(const Node& node) {
  const TileReduction* reduction = find_tile_reduction(node.op);
  if (reduction == nullptr || !node.domain.empty() || node.attr_int("keepdims", 1) == 0) return nullptr;
  const Value* x = node.input(0);
  const Value* axes = node.input(1);
  if (x == nullptr || !x->type.is_tensor() || !is_float(x->type.dtype) || !x->type.shape) return nullptr;
  if (axes == nullptr || !axes->constant || axes->constant->size() != 1) return nullptr;
  const Shape& shape = *x->type.shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  const std::int64_t axis = axes->constant->to_ints()[0];
  if (rank == 0 || (axis != -1 && axis != rank - 1)) return nullptr;
  return rows_suit(shape) ? reduction : nullptr;
}

std::span<Value* const> tile_operands(const Node& node) {
  return row_reduction(node) != nullptr ? std::span(node.inputs).first(1) : std::span(node.inputs);
}

std::vector<TileGroup> find_tile_groups(Graph& graph) { return Grouping(graph).run(); }

}  // namespace backpass
