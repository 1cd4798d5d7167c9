// Who reads what: every change of it, so that a value's readers are always those of the nodes.
#include <algorithm>
#include <utility>

#include "graph/effects.hpp"
#include "graph/graph.hpp"
#include "graph/op.hpp"

namespace backpass {

void Graph::add_read(Value* v, Node* node) {
  if (v != nullptr) v->readers.items_.push_back(node);
}

void Graph::drop_read(Value* v, Node* node) {
  if (v == nullptr) return;
  std::vector<Node*>& readers = v->readers.items_;
  auto it = std::find(readers.begin(), readers.end(), node);
  ensure(it != readers.end(), shown(*node), " is not among the readers of '", v->name, "'");
  readers.erase(it);
}

void Graph::set_input(Node& node, std::size_t i, Value* value) {
  std::vector<Value*>& reads = node.inputs.items_;
  if (reads.size() <= i) reads.resize(i + 1, nullptr);
  if (reads[i] == value) return;
  drop_read(reads[i], &node);
  reads[i] = value;
  add_read(value, &node);
}

void Graph::set_inputs(Node& node, const std::vector<Value*>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) set_input(node, i, values[i]);
  std::vector<Value*>& reads = node.inputs.items_;
  for (; reads.size() > values.size(); reads.pop_back()) drop_read(reads.back(), &node);
}

void Graph::rewrite(Node& node, std::string_view domain, std::string_view op, const std::vector<Value*>& values) {
  node.domain = domain;
  node.op = op;
  node.def = find_op(domain, op);
  ensure(node.def != nullptr, "rewrite: operator ", domain, ".", op, " is not registered");
  std::vector<Value*> left = node.inputs;
  set_inputs(node, values);
  while (!left.empty()) {
    Node* producer = left.back() == nullptr ? nullptr : left.back()->producer;
    left.pop_back();
    if (producer == nullptr) continue;
    const bool is_read = std::any_of(producer->outputs.begin(), producer->outputs.end(),
                                     [&](const Value* v) { return use_count(v) > 0; });
    if (is_read || has_effect(*producer)) continue;
    for_each_read(*producer, [&](Value* v) { left.push_back(v); });
    read_nothing(*producer);
  }
}

void Graph::read_nothing(Node& node) {
  for_each_read(node, [&](Value* v) { drop_read(v, &node); });
  node.inputs.items_.clear();
  node.subgraphs.items_.clear();
}

void Graph::add_subgraph(Node& node, std::string_view key, std::unique_ptr<Graph> body) {
  body->parent = this;
  body->owner_ = &node;
  for (const Capture& c : body->captures) add_read(c.outer, &node);
  node.subgraphs.items_.emplace_back(key, std::move(body));
}

void Graph::add_capture(Value* outer, Value* inner) {
  captures.items_.push_back({outer, inner});
  if (owner_ != nullptr) add_read(outer, owner_);
}

void Graph::redirect_captures(const std::function<Value*(Value*)>& to) {
  for (Capture& c : captures.items_) {
    Value* target = to(c.outer);
    if (owner_ != nullptr) {
      drop_read(c.outer, owner_);
      add_read(target, owner_);
    }
    c.outer = target;
  }
}

void Graph::remove_captures(const std::function<bool(const Capture&)>& is_unwanted) {
  std::erase_if(captures.items_, [&](const Capture& c) {
    const bool goes = is_unwanted(c);
    if (goes && owner_ != nullptr) drop_read(c.outer, owner_);
    return goes;
  });
}

void Graph::replace_uses(Value* from, Value* to) {
  if (from == to) return;
  const std::vector<Node*> readers = std::exchange(from->readers.items_, {});
  for (Node* node : readers) {
    std::replace(node->inputs.items_.begin(), node->inputs.items_.end(), from, to);
    for (auto& [key, graph] : node->subgraphs) {
      for (Capture& c : graph->captures.items_) {
        if (c.outer == from) c.outer = to;
      }
    }
    add_read(to, node);
  }
  std::replace(outputs.begin(), outputs.end(), from, to);
}

std::size_t Graph::use_count(const Value* v) const {
  return v == nullptr ? 0 : v->readers.size() + (is_output(v) ? 1 : 0);
}

Node* Graph::only_reader(const Value* v) const {
  return v != nullptr && v->readers.size() == 1 && !is_output(v) ? v->readers.front() : nullptr;
}

}  // namespace backpass
