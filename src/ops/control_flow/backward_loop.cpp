#include "ops/control_flow/backward_loop.hpp"

#include <array>
#include <utility>

#include "graph/infer.hpp"
#include "graph/op.hpp"

namespace backpass {

BackwardLoop::BackwardLoop(GradientContext& g, const Iteration& iteration, Graph& back, Value* count)
    : g_(g),
      it_(iteration),
      back_(back),
      first_(back.nodes().empty() ? nullptr : back.nodes().front()),
      b_(back, first_, concat(g.node.name, "_Grad/step")),
      count_(count),
      number_(back.add_value("number", Type::tensor(DType::int64, Shape{}))),
      condition_(back.add_value("condition", Type::tensor(DType::boolean, Shape{}))) {
  at_ = b_.op("Sub", {b_.op("Sub", {captured_in(back, count), number_}), b_.integer(1)});
}

void BackwardLoop::replace(Value* inner, Value* with) {
  if (!with->type.shape && with->type.kind == inner->type.kind) with->type = inner->type;
  back_.replace_uses(inner, with);
}

void BackwardLoop::read(Value* inner, Value* stacked) {
  replace(inner, b_.op("Gather", {captured_in(back_, stacked), at_}, {{"axis", std::int64_t{0}}}));
}

void BackwardLoop::replay(const Graph& body, const std::vector<Value*>& inner) {
  Clone copy = clone(body);
  Graph& again = *copy.graph;
  again.outputs.resize(it_.states.size() + 1);  // the condition comes first
  again.redirect_captures([&](Value* outer) { return captured_in(back_, outer); });
  finish_body(g_, again);
  std::vector<Value*> inputs{at_, nullptr};
  std::vector<Value*> outputs;
  for (const CarriedState& s : it_.states) {
    inputs.push_back(captured_in(back_, g_.x(s.input)));
    outputs.push_back(back_.add_value(s.before->name));
  }
  const std::string name = concat(g_.node.name, "_Grad/again");
  Node* node = back_.add_node("Loop", std::move(inputs), outputs, name, "", first_);
  back_.add_subgraph(*node, "body", std::move(copy.graph));
  infer_node(back_, *node);
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] != nullptr) replace(inner[i], outputs[i]);
  }
}

std::vector<Value*> BackwardLoop::emit(std::unique_ptr<Graph> back, const std::vector<Value*>& states,
                                       std::vector<Value*> initial) {
  Builder end(back_, nullptr, concat(g_.node.name, "_Grad/end"));
  back_.outputs.insert(back_.outputs.begin(), end.op("Identity", {condition_}));
  back_.inputs = {number_, condition_};
  back_.inputs.insert(back_.inputs.end(), states.begin(), states.end());
  finish_body(g_, back_);
  Value* go_on = g_.b.constant(Tensor::from<bool>(DType::boolean, {}, std::array<bool, 1>{true}));
  initial.insert(initial.begin(), {count_, go_on});
  Bodies bodies;
  bodies.emplace_back("body", std::move(back));
  return add_with_bodies(g_, "Loop", std::move(initial), std::move(bodies), states.size());
}

}  // namespace backpass
