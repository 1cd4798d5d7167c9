// The gradient of If: another If, each of whose branches repeats the branch and differentiates it with respect to what
// either of them captures.
#include "ops/control_flow/if_rule.hpp"

#include <algorithm>

#include "gradient/activity.hpp"
#include "gradient/body.hpp"
#include "gradient/reverse.hpp"

namespace backpass {
namespace {

std::vector<Value*> wanted_by_either(const GradientContext& g) {
  std::vector<Value*> wanted;
  for (const auto& [key, branch] : g.node.subgraphs) {
    for (const Capture& c : wanted_captures(g, *branch)) {
      if (std::find(wanted.begin(), wanted.end(), c.outer) == wanted.end()) wanted.push_back(c.outer);
    }
  }
  return wanted;
}

std::unique_ptr<Graph> branch_gradient(GradientContext& g, const Graph& branch, const std::vector<Value*>& wanted,
                                       const GradientOptions& options) {
  Clone copy = clone(branch);
  Graph& body = *copy.graph;
  std::vector<Value*> outputs;
  std::vector<Value*> seeds;
  for (std::size_t k = 0; k < g.node.outputs.size(); ++k) {
    if (!g.has_dy(k)) continue;
    outputs.push_back(copy.of(branch.outputs[k]));
    seeds.push_back(captured_in(body, g.dy(k)));
  }
  std::vector<Value*> wrt;
  wrt.reserve(wanted.size());
  for (Value* outer : wanted) wrt.push_back(captured_in(body, outer));
  body.outputs.clear();
  body.outputs = add_gradients(body, outputs, seeds, wrt, options);
  finish_body(g, body);
  return std::move(copy.graph);
}

void differentiate(GradientContext& g, const GradientOptions& options) {
  const std::vector<Value*> wanted = wanted_by_either(g);
  Bodies branches;
  for (const auto& [key, branch] : g.node.subgraphs) {
    branches.emplace_back(key, branch_gradient(g, *branch, wanted, options));
  }
  std::vector<Value*> gradients = add_with_bodies(g, "If", {g.x()}, std::move(branches), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) g.set_captured(wanted[i], gradients[i]);
}

}  // namespace

void if_gradient(GradientContext& g) { differentiate(g, {.standard_only = true}); }

void if_fused_gradient(GradientContext& g) { differentiate(g, {}); }

}  // namespace backpass
