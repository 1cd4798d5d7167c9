#include "plan/kept_values.hpp"

#include <algorithm>
#include <optional>

#include "graph/op.hpp"
#include "graph/substitute.hpp"
#include "ops/custom/yield.hpp"

namespace backpass {
namespace {

// Costs are in sixteenths of a byte. A pointwise node that runs in the cache, as part of a tile, costs little of what
// its result takes to write; other nodes read and write memory.
constexpr std::int64_t kKeep = 16;
constexpr std::int64_t kPointwise = 1;
constexpr std::int64_t kOnePass = 4;
/// What nobody reads is not even written.
constexpr std::int64_t kWritten = 2;
constexpr std::int64_t kPerNode = std::int64_t{16} << 12;
/// The first convolution of a network, a product with a few features: as much work as writing and reading back.
constexpr std::int64_t kMostOperationsPerByte = 32;
constexpr std::int64_t kOperationsPerCost = 3;
constexpr std::int64_t kSmallShare = 512;
/// What all nodes behind one value may cost together.
constexpr std::int64_t kMaxChain = 12;
/// A value that nodes further apart than this read would be there most of the time if it were computed again.
constexpr std::ptrdiff_t kMaxCostlyBetween = 32;
constexpr std::int64_t kUnknownBytes = std::int64_t{1} << 40;

/// A view whose shape is computed from contents, which would have to be kept as well.
bool depends_on_more(const Node& node) {
  if (node.def == nullptr || !node.def->is_view) return false;
  return std::any_of(node.inputs.begin() + 1, node.inputs.end(),
                     [](const Value* v) { return v != nullptr && !v->constant && !v->ints; });
}

}  // namespace

bool is_cheap(const Node& node) {
  const OpDef* def = node.def;
  return def != nullptr && (def->tile != nullptr || def->is_view || def->is_one_pass);
}

bool is_dispensable(const Graph& graph, const NodeSet& later, const Value& v) {
  return !v.readers.empty() && !graph.is_output(&v) &&
         std::all_of(v.readers.begin(), v.readers.end(),
                     [&](const Node* r) { return later.count(r) != 0 && substitute_for(*r, v); });
}

LaterReads::LaterReads(const Graph& graph, const NodeSet& later) {
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

RepeatChoice::RepeatChoice(const Graph& graph, const NodeSet& later)
    : graph_(graph), later_(later), sizes_(graph), reads_(graph, later), fixed_(reads_.fixed) {
  for (const Node* node : graph.nodes()) {
    is_paused_ = is_paused_ || is_yield(*node);
    if (later.count(node) == 0 && depends_on_more(*node)) fixed_.insert(memory_of(node->inputs[0]));
    operations_ += sizes_.operations(*node).value_or(0);
  }
  for (Value* v : graph.outputs) outputs_.insert(memory_of(v));
  find_dispensable();
}

void RepeatChoice::find_dispensable() {
  for (const Value* v : reads_.all) {
    if (v->producer == nullptr || !is_dispensable(graph_, later_, *v)) continue;
    std::vector<Value*>& instead = dispensable_[v];
    for (const Node* reader : v->readers) {
      const Substitute by = substitute_for(*reader, *v).value();
      for (Value* read : by.inputs) {
        const bool is_read = std::find(reader->inputs.begin(), reader->inputs.end(), read) != reader->inputs.end();
        if (read == nullptr || is_read) continue;
        instead.push_back(read);
        readable_.insert(memory_of(read));
      }
    }
    fixed_.erase(v);  // nothing of it is there between its readers
  }
}

ConstValues RepeatChoice::run() {
  ConstValues found = cut();
  while (fix_long_chains(found)) found = cut();
  return found;
}

/// The second half may read it without any cost.
bool RepeatChoice::is_free(const Value* v) const {
  if (v->constant) return true;
  if (v->producer != nullptr && outputs_.count(v) == 0) return false;
  if (!is_paused_ || reads_.all.count(v) != 0 || readable_.count(v) != 0) return true;
  return std::find(graph_.steady_inputs.begin(), graph_.steady_inputs.end(), v) != graph_.steady_inputs.end();
}

/// The caller may change it before the second half runs, and is not told that it is read.
bool RepeatChoice::is_unavailable(const Value* v) const {
  return (v->producer == nullptr || outputs_.count(v) != 0) && !is_free(v);
}

std::int64_t RepeatChoice::bytes(const Value* v) const { return sizes_.bytes(*v).value_or(kUnknownBytes); }

std::int64_t RepeatChoice::cost(const Value* v) const {
  if (dispensable_.count(v) != 0) return kPointwise * bytes(v);
  const Node& node = *v->producer;
  if (!is_cheap(node)) return sizes_.operations(node).value() / kOperationsPerCost + kPerNode;
  std::int64_t written = 0;
  for (const Value* out : node.outputs) written = std::max(written, out == nullptr ? 0 : bytes(out));
  return written * (node.def->tile != nullptr ? kPointwise : kOnePass) + kPerNode;
}

bool RepeatChoice::is_small_product(const Node& node) const {
  const std::optional<std::int64_t> operations = sizes_.operations(node);
  if (!operations || node.def->prepare == nullptr || node.def->is_random || node.outputs.size() != 1) return false;
  auto is_given = [](const Value* v) { return v == nullptr || memory_of(v)->producer == nullptr; };
  if (!std::all_of(node.inputs.begin(), node.inputs.end(), is_given)) return false;
  return *operations <= kMostOperationsPerByte * bytes(node.outputs[0]) && *operations <= operations_ / kSmallShare;
}

bool RepeatChoice::can_repeat(const Value* v) const {
  if (fixed_.count(v) != 0) return false;
  if (dispensable_.count(v) != 0) return true;
  const Node& node = *v->producer;
  if (!node.subgraphs.empty() || !(is_cheap(node) || is_small_product(node))) return false;
  auto is_sized = [&](const Value* other) { return other == nullptr || sizes_.bytes(*other); };
  return std::all_of(node.inputs.begin(), node.inputs.end(), is_sized) &&
         std::all_of(node.outputs.begin(), node.outputs.end(), is_sized);
}

/// What is needed to compute it again.
const std::vector<Value*>& RepeatChoice::sources(const Value* v) const {
  const auto it = dispensable_.find(v);
  return it != dispensable_.end() ? it->second : static_cast<const std::vector<Value*>&>(v->producer->inputs);
}

RepeatChoice::Ends RepeatChoice::ends_of(const Value* v) {
  auto [it, is_new] = ends_.try_emplace(v);
  if (is_new) {
    it->second = {network_.add_vertex(), network_.add_vertex()};
    const std::int64_t each = kKeep + (dispensable_.count(v) != 0 ? kWritten : 0);
    const std::int64_t keep = is_unavailable(v) ? FlowNetwork::kUncut : is_free(v) ? 0 : each * bytes(v);
    network_.add_edge(it->second.in, it->second.out, keep);
  }
  return it->second;
}

/// Each output of a node by itself: they may be wanted in different places.
void RepeatChoice::add(const Value* v) {
  const int in = ends_of(v).in;
  if (!can_repeat(v)) return network_.add_edge(source_, in, FlowNetwork::kUncut);
  network_.add_edge(source_, in, cost(v));
  for (Value* read : sources(v)) {
    if (read != nullptr) network_.add_edge(ends_of(memory_of(read)).out, in, FlowNetwork::kUncut);
  }
}

ConstValues RepeatChoice::cut() {
  network_ = {};
  ends_.clear();
  source_ = network_.add_vertex();
  const int sink = network_.add_vertex();
  for (const Node* node : graph_.nodes()) {
    if (later_.count(node) != 0 || (node->def != nullptr && node->def->is_view)) continue;
    for (const Value* v : node->outputs) {
      if (v != nullptr) add(v);
    }
  }
  for (const Value* v : reads_.all) network_.add_edge(ends_of(v).out, sink, FlowNetwork::kUncut);
  for (const auto& [v, ends] : ends_) {
    if (v->producer == nullptr) network_.add_edge(source_, ends.in, FlowNetwork::kUncut);
  }
  const std::vector<bool> is_sinks = network_.sink_side(source_, sink);
  ConstValues found;
  for (const auto& [v, ends] : ends_) {
    if (is_sinks[static_cast<std::size_t>(ends.in)]) found.insert(v);
  }
  return found;
}

void RepeatChoice::add_chain(const Value* v, const ConstValues& repeated, ConstValues& chain) const {
  if (repeated.count(v) == 0 || !chain.insert(v).second) return;
  for (Value* source : sources(v)) {
    if (source != nullptr) add_chain(memory_of(source), repeated, chain);
  }
}

/// Each value is computed again by itself, with all that is behind it but for products; where that is too much, one on
/// the way stays.
bool RepeatChoice::fix_long_chains(ConstValues repeated) {
  bool any = false;
  for (const Node* node : graph_.nodes()) {
    for (const Value* v : node->outputs) {
      if (v == nullptr || repeated.count(v) == 0) continue;
      ConstValues chain;
      add_chain(v, repeated, chain);
      NodeSet counted;
      std::int64_t total = 0;
      for (const Value* other : chain) {
        if (is_cheap(*other->producer) && counted.insert(other->producer).second) total += cost(other);
      }
      if (total <= kMaxChain * bytes(v)) continue;
      fixed_.insert(v);
      repeated.erase(v);
      any = true;
    }
  }
  return any;
}

}  // namespace backpass
