// The gradient of SequenceMap: another one, whose body repeats the body for each element and differentiates it. What
// the body reads besides elements receives a gradient from each of them, and they are added up.
#include "gradient/activity.hpp"
#include "gradient/body.hpp"
#include "gradient/containers.hpp"
#include "gradient/reverse.hpp"
#include "ops/sequences/sequence_rules.hpp"

namespace backpass {
namespace {

/// Something of the node that wants a gradient.
struct Wanted {
  Value* outer;
  Value* inner;       ///< in the copy of the body
  std::size_t input;  ///< of the node; past the last one for captured values
};

std::vector<Wanted> wanted_of(const GradientContext& g, const Graph& body, const Clone& copy) {
  std::vector<Wanted> wanted;
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) {
    if (g.wants(i)) wanted.push_back({g.x(i), copy.of(body.inputs[i]), i});
  }
  for (const Capture& c : wanted_captures(g, body)) {
    if (!c.outer->type.is_tensor()) {
      fail<Unsupported>(g.node.label(), " gradient: its body reads '", c.outer->name, "', ", c.outer->type.str(),
                        ", as a whole for each element, expected tensors; use a Loop over the elements instead");
    }
    wanted.push_back({c.outer, copy.of(c.inner), g.node.inputs.size()});
  }
  return wanted;
}

std::vector<Value*> inners(const std::vector<Wanted>& wanted) {
  std::vector<Value*> result;
  result.reserve(wanted.size());
  for (const Wanted& w : wanted) result.push_back(w.inner);
  return result;
}

void answer(GradientContext& g, const Wanted& wanted, Value* gradients) {
  const bool is_element = wanted.outer->type.kind == Type::Kind::sequence;
  Value* gradient = is_element ? gradients : sum_over(g, gradients, wanted.outer);
  if (wanted.input < g.node.inputs.size()) {
    g.set(wanted.input, gradient);
  } else {
    g.set_captured(wanted.outer, gradient);
  }
}

void differentiate(GradientContext& g, const GradientOptions& options) {
  const Graph& body = *g.node.subgraphs.front().second;
  Clone copy = clone(body);
  Graph& back = *copy.graph;
  std::vector<Wanted> wanted = wanted_of(g, body, copy);
  std::vector<Value*> inputs = g.node.inputs;
  std::vector<Value*> outputs;
  std::vector<Value*> seeds;
  for (std::size_t k = 0; k < g.node.outputs.size(); ++k) {
    if (!g.has_dy(k)) continue;
    outputs.push_back(copy.of(body.outputs[k]));
    seeds.push_back(back.add_value(outputs.back()->name + "_grad", outputs.back()->type));
    back.inputs.push_back(seeds.back());
    inputs.push_back(g.dy(k));
  }
  const ValueSet active = active_values(back, outputs, inners(wanted));
  std::erase_if(wanted, [&](const Wanted& w) {
    if (active.count(w.inner) != 0) return false;
    if (w.input < g.node.inputs.size()) g.set_zero(w.input);
    return true;
  });
  if (wanted.empty()) return;
  back.outputs.clear();
  back.outputs = add_gradients(back, outputs, seeds, inners(wanted), options);
  finish_body(g, back);
  Bodies bodies;
  bodies.emplace_back("body", std::move(copy.graph));
  std::vector<Value*> found = add_with_bodies(g, "SequenceMap", std::move(inputs), std::move(bodies), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) answer(g, wanted[i], found[i]);
}

}  // namespace

void sequence_map_gradient(GradientContext& g) { differentiate(g, {.standard_only = true}); }

void sequence_map_fused_gradient(GradientContext& g) { differentiate(g, {}); }

}  // namespace backpass
