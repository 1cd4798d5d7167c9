#include "passes/kept_values.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/op.hpp"
#include "ops/custom/yield.hpp"
#include "support/min_cut.hpp"

namespace backpass {
namespace {

using Values = std::unordered_set<const Value*>;

constexpr std::int64_t kNominalExtent = 64;  // of every symbol

// Costs are in sixteenths of a byte. A pointwise node that runs in the cache, as part of a tile, costs little of what
// its result takes to write; other nodes read and write memory.
constexpr std::int64_t kKeep = 16;
constexpr std::int64_t kPointwise = 1;
constexpr std::int64_t kOnePass = 4;
constexpr std::int64_t kPerNode = std::int64_t{16} << 12;
/// What all nodes behind one value may cost together.
constexpr std::int64_t kMaxChain = 12;
/// A value that nodes further apart than this read would be there most of the time if it were computed again.
constexpr std::ptrdiff_t kMaxCostlyBetween = 32;
constexpr std::int64_t kUnknownBytes = std::int64_t{1} << 40;

class Sizes {
 public:
  explicit Sizes(const Graph& graph) {
    for (const Value* v : graph.inputs) {
      if (!v->type.shape) continue;
      for (const Dim& d : *v->type.shape) {
        if (std::optional<std::string> name = d.symbol_name()) nominal_.emplace(*name, Dim(kNominalExtent));
      }
    }
  }

  /// With a number for every symbol; nothing where data decide, and for what is no tensor of plain elements.
  std::optional<std::int64_t> bytes(const Value& v) const {
    if (!v.type.is_tensor() || !v.type.shape) return std::nullopt;
    if (v.type.dtype == DType::undefined || v.type.dtype == DType::string) return std::nullopt;
    const std::optional<Dim> count = unless_it_overflows([&] { return product(*v.type.shape).substituted(nominal_); });
    if (!count || !count->is_known() || count->value() < 0 || count->value() > kUnknownBytes / 16) return std::nullopt;
    return static_cast<std::int64_t>(byte_size(v.type.dtype, count->value()));
  }

 private:
  std::map<std::string, Dim> nominal_;
};

/// What the second half reads of the first, by the memory it reads.
struct Reads {
  Values all;
  Values fixed;  ///< stay as they are: bodies of control flow see them, or readers are far apart

  Reads(const Graph& graph, const NodeSet& later) {
    std::unordered_map<const Value*, std::ptrdiff_t> first;
    std::ptrdiff_t costly = 0;
    for (const Node* node : graph.nodes()) {
      if (later.count(node) == 0) continue;
      if (!is_cheap(*node)) ++costly;
      if (is_yield(*node) || reads_extents_only(*node)) continue;
      for_each_read(*node, [&](Value* v) {
        const Value* memory = memory_of(v);
        if (memory->producer != nullptr && later.count(memory->producer) != 0) return;
        all.insert(memory);
        const std::ptrdiff_t since = first.emplace(memory, costly).first->second;
        if (!node->subgraphs.empty() || costly - since > kMaxCostlyBetween) fixed.insert(memory);
      });
    }
  }
};

/// A view whose shape is computed from contents, which would have to be kept as well.
bool depends_on_more(const Node& node) {
  if (node.def == nullptr || !node.def->is_view) return false;
  return std::any_of(node.inputs.begin() + 1, node.inputs.end(),
                     [](const Value* v) { return v != nullptr && !v->constant && !v->ints; });
}

class Choice {
 public:
  Choice(const Graph& graph, const NodeSet& later)
      : graph_(graph), later_(later), sizes_(graph), reads_(graph, later), fixed_(reads_.fixed) {
    for (const Node* node : graph.nodes()) {
      is_paused_ = is_paused_ || is_yield(*node);
      if (later.count(node) == 0 && depends_on_more(*node)) fixed_.insert(memory_of(node->inputs[0]));
    }
    for (Value* v : graph.outputs) outputs_.insert(memory_of(v));
  }

  Values run() {
    Values found = cut();
    while (fix_long_chains(found)) found = cut();
    return found;
  }

 private:
  /// The second half may read it without any cost.
  bool is_free(const Value* v) const {
    if (v->constant) return true;
    if (v->producer != nullptr && outputs_.count(v) == 0) return false;
    if (!is_paused_ || reads_.all.count(v) != 0) return true;
    return std::find(graph_.steady_inputs.begin(), graph_.steady_inputs.end(), v) != graph_.steady_inputs.end();
  }

  /// The caller may change it before the second half runs, and is not told that it is read.
  bool is_unavailable(const Value* v) const {
    return (v->producer == nullptr || outputs_.count(v) != 0) && !is_free(v);
  }

  std::int64_t bytes(const Value* v) const { return sizes_.bytes(*v).value_or(kUnknownBytes); }

  std::int64_t cost(const Node& node) const {
    std::int64_t written = 0;
    for (const Value* v : node.outputs) written = std::max(written, v == nullptr ? 0 : bytes(v));
    return written * (node.def->tile != nullptr ? kPointwise : kOnePass) + kPerNode;
  }

  bool is_repeatable(const Node& node) const {
    if (!is_cheap(node) || !node.subgraphs.empty()) return false;
    auto is_sized = [&](const Value* v) { return v == nullptr || sizes_.bytes(*v); };
    return std::all_of(node.inputs.begin(), node.inputs.end(), is_sized) &&
           std::all_of(node.outputs.begin(), node.outputs.end(), is_sized);
  }

  /// The two ends of a value, the edge between them being what it costs to keep.
  struct Ends {
    int in;
    int out;
  };

  Ends ends_of(const Value* v) {
    auto [it, is_new] = ends_.try_emplace(v);
    if (is_new) {
      it->second = {network_.add_vertex(), network_.add_vertex()};
      const std::int64_t keep = is_unavailable(v) ? FlowNetwork::kUncut : is_free(v) ? 0 : kKeep * bytes(v);
      network_.add_edge(it->second.in, it->second.out, keep);
    }
    return it->second;
  }

  /// Each output by itself: they may be wanted in different places.
  void add(const Node& node) {
    const bool can_repeat = is_repeatable(node);
    for (const Value* v : node.outputs) {
      if (v == nullptr) continue;
      const int in = ends_of(v).in;
      const bool can = can_repeat && fixed_.count(v) == 0;
      network_.add_edge(source_, in, can ? cost(node) : FlowNetwork::kUncut);
      for (Value* read : node.inputs) {
        if (can && read != nullptr) network_.add_edge(ends_of(memory_of(read)).out, in, FlowNetwork::kUncut);
      }
    }
  }

  Values cut() {
    network_ = {};
    ends_.clear();
    source_ = network_.add_vertex();
    const int sink = network_.add_vertex();
    for (const Node* node : graph_.nodes()) {
      if (later_.count(node) == 0 && (node->def == nullptr || !node->def->is_view)) add(*node);
    }
    for (const Value* v : reads_.all) network_.add_edge(ends_of(v).out, sink, FlowNetwork::kUncut);
    for (const auto& [v, ends] : ends_) {
      if (v->producer == nullptr) network_.add_edge(source_, ends.in, FlowNetwork::kUncut);
    }
    const std::vector<bool> is_sinks = network_.sink_side(source_, sink);
    Values found;
    for (const auto& [v, ends] : ends_) {
      if (is_sinks[static_cast<std::size_t>(ends.in)]) found.insert(v);
    }
    return found;
  }

  void add_chain(const Value* v, const Values& repeated, NodeSet& chain) const {
    if (repeated.count(v) == 0 || !chain.insert(v->producer).second) return;
    for (Value* source : v->producer->inputs) {
      if (source != nullptr) add_chain(memory_of(source), repeated, chain);
    }
  }

  /// Each value is computed again by itself, with all that is behind it; where that is too much, one on the way stays.
  bool fix_long_chains(Values repeated) {
    bool any = false;
    for (const Node* node : graph_.nodes()) {
      for (const Value* v : node->outputs) {
        if (v == nullptr || repeated.count(v) == 0) continue;
        NodeSet chain;
        add_chain(v, repeated, chain);
        std::int64_t total = 0;
        for (const Node* n : chain) total += cost(*n);
        if (total <= kMaxChain * bytes(v)) continue;
        fixed_.insert(v);
        repeated.erase(v);
        any = true;
      }
    }
    return any;
  }

  const Graph& graph_;
  const NodeSet& later_;
  Sizes sizes_;
  Reads reads_;
  Values fixed_;
  Values outputs_;
  bool is_paused_ = false;
  FlowNetwork network_;
  int source_ = 0;
  std::unordered_map<const Value*, Ends> ends_;
};

}  // namespace

bool is_cheap(const Node& node) {
  const OpDef* def = node.def;
  return def != nullptr && (def->tile != nullptr || def->is_view || def->is_one_pass);
}

std::unordered_set<const Value*> values_to_repeat(const Graph& graph, const NodeSet& later) {
  return Choice(graph, later).run();
}

}  // namespace backpass
