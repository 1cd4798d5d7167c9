#include "gradient/clone.hpp"

#include <memory>
#include <utility>

namespace backpass {
namespace {

Value* copy_of(Graph& to, const Value* v, ValueMap& copies) {
  if (v == nullptr) return nullptr;
  auto [at, is_new] = copies.try_emplace(v, nullptr);
  if (is_new) {
    at->second = to.add_value(v->name, v->type);
    at->second->constant = v->constant;
    at->second->ints = v->ints;
  }
  return at->second;
}

std::unique_ptr<Graph> clone_body(Graph& parent, const Graph& body, ValueMap& outer) {
  auto result = std::make_unique<Graph>();
  result->name = body.name;
  result->parent = &parent;
  ValueMap copies;
  for (const Capture& c : body.captures) {
    result->captures.push_back({copy_of(parent, c.outer, outer), copy_of(*result, c.inner, copies)});
  }
  for (const Value* v : body.inputs) result->inputs.push_back(copy_of(*result, v, copies));
  clone_into(*result, body, copies);
  for (const Value* v : body.outputs) result->outputs.push_back(copy_of(*result, v, copies));
  return result;
}

}  // namespace

void clone_into(Graph& to, const Graph& from, ValueMap& copies) {
  auto all = [&](const std::vector<Value*>& values) {
    std::vector<Value*> result;
    result.reserve(values.size());
    for (const Value* v : values) result.push_back(copy_of(to, v, copies));
    return result;
  };
  for (const Node* node : from.nodes()) {
    Node* copy = to.add_node(node->op, all(node->inputs), all(node->outputs), node->name, node->domain);
    copy->opset = node->opset;
    copy->attributes = node->attributes;
    for (const auto& [key, body] : node->subgraphs) copy->subgraphs.emplace_back(key, clone_body(to, *body, copies));
  }
}

}  // namespace backpass
