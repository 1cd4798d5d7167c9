#include "graph/graph.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/op.hpp"

namespace backpass {

Graph::~Graph() = default;

std::string Graph::unique_name(std::string_view wanted) {
  std::string base(wanted.empty() ? "v" : wanted);
  auto [taken, is_new] = taken_names_.try_emplace(base, 0);
  if (is_new) return base;
  std::string unique;
  do {
    unique = base + "_" + std::to_string(++taken->second);
  } while (!taken_names_.try_emplace(unique, 0).second);
  return unique;
}

void Graph::rename(Value* value, std::string_view wanted) {
  taken_names_.erase(value->name);
  value->name = unique_name(wanted);
}

Value* Graph::add_value(std::string_view wanted, Type type) {
  auto value = std::make_unique<Value>();
  value->name = unique_name(wanted);
  value->type = std::move(type);
  values_.push_back(std::move(value));
  return values_.back().get();
}

Value* Graph::add_constant(std::string_view wanted, Tensor tensor) {
  Value* v = add_value(wanted, Type::tensor(tensor.dtype(), to_shape(tensor.dims())));
  v->constant = std::move(tensor);
  return v;
}

Node* Graph::add_node(std::string_view op, std::vector<Value*> reads, std::vector<Value*> writes,
                      std::string_view node_name, std::string_view domain, const Node* before) {
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->name = node_name;
  node->op = op;
  node->domain = domain;
  node->def = find_op(domain, op);
  node->inputs.items_ = std::move(reads);
  for (Value* v : node->inputs) add_read(v, node);
  node->outputs = std::move(writes);
  for (Value* v : node->outputs) {
    if (v != nullptr) v->producer = node;
  }
  nodes_.push_back(std::move(owned));
  auto position = before == nullptr ? order_.end() : std::find(order_.begin(), order_.end(), before);
  order_.insert(position, node);
  return node;
}

void Graph::remove_node(Node* node) {
  for_each_read(*node, [&](Value* v) { drop_read(v, node); });
  std::unordered_set<const Value*> gone(node->outputs.begin(), node->outputs.end());
  gone.erase(nullptr);
  std::erase(order_, node);
  std::erase_if(nodes_, [&](const auto& n) { return n.get() == node; });
  std::erase_if(values_, [&](const auto& v) { return gone.count(v.get()) != 0; });
}

int Graph::remove_dead_nodes() {
  std::unordered_set<const Value*> live(outputs.begin(), outputs.end());
  std::unordered_set<const Node*> dead;
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
    Node* node = *it;
    bool used = std::any_of(node->outputs.begin(), node->outputs.end(), [&](Value* v) { return live.count(v) != 0; });
    if (used) {
      for_each_read(*node, [&](Value* v) { live.insert(v); });
      for (Value* v : node->outputs) live.insert(v);
    } else {
      dead.insert(node);
    }
  }
  for (Value* v : inputs) live.insert(v);
  for (const Capture& c : captures) live.insert(c.inner);
  std::unordered_set<Value*> less_read;
  for (const Node* node : dead) {
    for_each_read(*node, [&](Value* v) {
      if (live.count(v) != 0) less_read.insert(v);
    });
  }
  for (Value* v : less_read) std::erase_if(v->readers.items_, [&](const Node* n) { return dead.count(n) != 0; });
  std::erase_if(order_, [&](const Node* n) { return dead.count(n) != 0; });
  std::erase_if(nodes_, [&](const auto& n) { return dead.count(n.get()) != 0; });
  std::erase_if(values_, [&](const auto& v) { return live.count(v.get()) == 0; });
  return static_cast<int>(dead.size());
}

void Graph::sort_topologically() {
  std::unordered_map<const Node*, int> pending;
  std::unordered_map<const Node*, std::size_t> rank;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    Node* node = order_[i];
    rank[node] = i;
    pending[node] = 0;
    for_each_read(*node, [&](Value* v) {
      if (v->producer != nullptr) ++pending[node];
    });
  }
  std::set<std::size_t> ready;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (pending[order_[i]] == 0) ready.insert(i);
  }
  std::vector<Node*> sorted;
  while (!ready.empty()) {
    Node* node = order_[*ready.begin()];
    ready.erase(ready.begin());
    sorted.push_back(node);
    for (const Value* v : node->outputs) {
      if (v == nullptr || v->producer == nullptr) continue;
      for (Node* reader : v->readers) {
        if (--pending[reader] == 0) ready.insert(rank[reader]);
      }
    }
  }
  if (sorted.size() != order_.size()) {
    std::string names;
    for (Node* node : order_) {
      if (pending[node] > 0 && names.size() < 200) names += (names.empty() ? "" : ", ") + node->label();
    }
    fail("graph '", name, "' has a cycle through ", names, "; an ONNX graph must be acyclic");
  }
  order_ = std::move(sorted);
}

bool Graph::is_output(const Value* v) const { return std::find(outputs.begin(), outputs.end(), v) != outputs.end(); }

}  // namespace backpass
