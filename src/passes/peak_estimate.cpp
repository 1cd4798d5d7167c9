#include "passes/peak_estimate.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "graph/halves.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

class Walk {
 public:
  Walk(const Graph& graph, const NominalSizes& sizes) : graph_(graph), sizes_(sizes) {
    for (const Value* v : graph.outputs) outputs_.insert(memory_of(v));
    std::size_t at = 0;
    for (const Node* node : graph.nodes()) {
      if (!is_view(*node) && !reads_extents_only(*node)) {
        for_each_read(*node, [&](const Value* v) { last_read_[memory_of(v)] = at; });
      }
      ++at;
    }
  }

  PeakEstimate run() {
    std::size_t at = 0;
    for (const Node* node : graph_.nodes()) {
      if (!is_view(*node)) place(*node, at);
      ++at;
    }
    return peak();
  }

 private:
  struct Storage {
    std::int64_t bytes = 0;
    std::size_t first = 0;
    std::size_t last = 0;
    bool is_callers = false;  ///< holds an output of the graph, in the end
    std::vector<const Value*> values = {};
  };

  static bool is_view(const Node& node) { return node.def != nullptr && node.def->is_view; }

  std::int64_t bytes(const Value& v) const { return sizes_.bytes(v).value_or(0); }

  void place(const Node& node, std::size_t at) {
    for (const Value* v : node.outputs) {
      if (v == nullptr) continue;
      const std::size_t storage = node.outputs.size() == 1 ? reused(node, at) : storages_.size();
      if (storage == storages_.size()) storages_.push_back({bytes(*v), at, at});
      storage_of_[v] = storage;
      Storage& used = storages_[storage];
      const auto last = last_read_.find(v);
      used.last = std::max(at, last == last_read_.end() ? at : last->second);
      used.is_callers = outputs_.count(v) != 0;
      used.values.push_back(v);
    }
  }

  /// The memory of an operand that nobody needs afterwards, if the node may write there; else a new one.
  std::size_t reused(const Node& node, std::size_t at) const {
    const OpDef* def = node.def;
    if (def == nullptr || def->in_place_input < 0) return storages_.size();
    const Value& out = *node.outputs[0];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const bool may_be = def->tile != nullptr || def->is_tile_program || static_cast<int>(i) == def->in_place_input;
      const Value* v = node.inputs[i];
      if (!may_be || v == nullptr || v->type.dtype != out.type.dtype) continue;
      const auto it = storage_of_.find(memory_of(v));
      if (it == storage_of_.end()) continue;
      const Storage& found = storages_[it->second];
      if (found.last == at && !found.is_callers && found.bytes == bytes(out) && bytes(*v) == bytes(out)) {
        return it->second;
      }
    }
    return storages_.size();
  }

  PeakEstimate peak() const {
    std::vector<std::int64_t> change(graph_.nodes().size() + 1, 0);
    for (const Storage& s : storages_) {
      if (s.is_callers) continue;
      change[s.first] += s.bytes;
      change[s.last + 1] -= s.bytes;
    }
    PeakEstimate found;
    std::size_t where = 0;
    std::int64_t live = 0;
    for (std::size_t at = 0; at < change.size(); ++at) {
      live += change[at];
      if (live <= found.bytes) continue;
      found.bytes = live;
      where = at;
    }
    for (const Storage& s : storages_) {
      if (s.first <= where && where <= s.last && !s.is_callers) found.there.insert(s.values.begin(), s.values.end());
    }
    return found;
  }

  const Graph& graph_;
  const NominalSizes& sizes_;
  std::unordered_set<const Value*> outputs_;
  std::unordered_map<const Value*, std::size_t> last_read_;
  std::vector<Storage> storages_;
  std::unordered_map<const Value*, std::size_t> storage_of_;
};

}  // namespace

PeakEstimate estimate_peak(const Graph& graph, const NominalSizes& sizes) { return Walk(graph, sizes).run(); }

}  // namespace backpass
