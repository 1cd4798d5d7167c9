#include "gradient/reverse.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "gradient/activity.hpp"
#include "gradient/containers.hpp"
#include "gradient/rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

bool is_on_path(const Node& node, const ValueSet& active) {
  return node.def != nullptr && !node.def->is_flat && writes_any(node, active) && reads_any(node, active);
}

using Rule = void (*)(GradientContext&);

Rule rule_of(const OpDef& def, const GradientOptions& options) {
  if (!options.standard_only && def.fused_gradient != nullptr) return def.fused_gradient;
  return def.gradient;
}

bool may_be_equal(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Dim& x, const Dim& y) { return !x.is_known() || !y.is_known() || x == y; });
}

class Reverse {
 public:
  Reverse(Graph& graph, ValueSet active, const GradientOptions& options)
      : graph_(graph), active_(std::move(active)), options_(options) {}

  void seed(Value* output, Value* gradient) {
    if (active_.count(output) == 0) return;
    contributions_[output].push_back(gradient != nullptr ? gradient : ones_like(output));
  }

  void run() {
    const std::vector<Node*> forward = graph_.nodes();
    for (auto it = forward.rbegin(); it != forward.rend(); ++it) {
      if (is_on_path(**it, active_)) differentiate(**it);
    }
  }

  /// The gradient under its own name.
  Value* result(Value* v) {
    Value* gradient = total(v);
    Builder b(graph_, nullptr, v->name + "_grad");
    if (gradient == nullptr) {
      gradient = filled_like(b, v, 0);
      claim(gradient, v->name + "_grad");
    } else if (named_after_[gradient] != v) {
      gradient = b.op("Identity", {gradient});
      claim(gradient, v->name + "_grad");
    }
    return gradient;
  }

 private:
  Value* ones_like(Value* output) {
    if (output->type.shape && output->type.shape->empty()) {
      Builder b(graph_, nullptr, output->name);
      Value* one = b.scalar(1, output);
      graph_.rename(one, output->name + "_grad");
      return one;
    }
    Builder b(graph_, nullptr, output->name + "_grad");
    return filled_like(b, output, 1);
  }

  void claim(Value* gradient, const std::string& name) { graph_.rename(gradient, name); }

  /// Contributions joined; null when there is none.
  Value* total(Value* v) {
    auto it = contributions_.find(v);
    if (it == contributions_.end()) return nullptr;
    std::vector<Value*>& parts = it->second;
    const std::string name = v->name + "_grad";
    if (parts.size() > 1) {
      for (std::size_t i = 0; i < parts.size(); ++i) name_once(parts[i], v, concat(name, "_", i));
      Builder b(graph_, nullptr, name);
      Value* sum = sum_of(b, parts);
      sum->producer->name = "AccumulateGrad_" + name;
      parts = {sum};
    }
    name_once(parts[0], v, name);
    return parts[0];
  }

  /// A gradient that passes through unchanged keeps the name of the value it was first computed for.
  void name_once(Value* gradient, const Value* owner, const std::string& name) {
    if (gradient->producer == nullptr || !named_after_.emplace(gradient, owner).second) return;
    if (graph_.is_output(gradient)) return;
    graph_.rename(gradient, name);
  }

  void differentiate(const Node& node) {
    std::vector<Value*> output_gradients;
    bool any = false;
    for (Value* v : node.outputs) {
      output_gradients.push_back(v != nullptr && active_.count(v) != 0 ? total(v) : nullptr);
      any = any || output_gradients.back() != nullptr;
    }
    if (!any) return;
    std::string prefix = node.name;
    for (std::size_t k = 0; prefix.empty() && k < node.outputs.size(); ++k) {
      if (node.outputs[k] != nullptr) prefix = node.outputs[k]->name;
    }
    Builder b(graph_, nullptr, prefix + "_Grad");
    GradientContext g(b, node, std::move(output_gradients), active_);
    rule_of(*node.def, options_)(g);
    g.check_complete();
    for (auto [value, gradient] : g.results()) {
      if (gradient == nullptr) continue;
      settle_type(node, *value, *gradient);
      contributions_[value].push_back(gradient);
    }
  }

  /// A gradient has the type of its value, whether or not inference could follow how it was computed.
  static void settle_type(const Node& node, const Value& value, Value& gradient) {
    const Type& wanted = gradient_type(value.type);
    ensure(gradient.type.kind == wanted.kind && gradient.type.dtype == wanted.dtype, shown(node), " gradient of '",
           value.name, "': got ", shown(gradient.type), ", expected ", shown(value.type));
    if (gradient.producer == nullptr || !value.type.shape) return;
    if (gradient.type.shape) {
      ensure(may_be_equal(*gradient.type.shape, *value.type.shape), shown(node), " gradient of '", value.name,
             "': got ", shown(gradient.type), ", expected ", shown(value.type));
      if (is_known(*gradient.type.shape)) return;
    }
    gradient.type.shape = value.type.shape;
  }

  Graph& graph_;
  ValueSet active_;
  GradientOptions options_;
  std::map<const Value*, std::vector<Value*>> contributions_;
  std::map<const Value*, const Value*> named_after_;  // gradient -> the value whose name it carries
};

std::vector<Problem> problems_of(const Graph& graph, const ValueSet& active, std::span<Value* const> outputs,
                                 std::span<Value* const> wrt, const GradientOptions& options) {
  std::vector<Problem> problems;
  auto refuse = [&](const Value* v, std::string_view role) {
    if (holds_floats(v->type)) return;
    problems.push_back(
        {Problem::Kind::invalid, "", "", concat(role, " '", v->name, "': got ", v->type.str(), ", expected floats")});
  };
  for (const Value* v : outputs) refuse(v, "differentiated output");
  for (const Value* v : wrt) refuse(v, "differentiation with respect to");
  for (const Node* node : graph.nodes()) {
    if (!is_on_path(*node, active) || rule_of(*node->def, options) != nullptr) continue;
    problems.push_back({Problem::Kind::unsupported, node->name, node->op,
                        concat(node->label(), " gradient: got an operator without one on the way to '",
                               node->output(0) == nullptr ? "" : node->output(0)->name,
                               "', expected a differentiable one; freeze what comes before it, replace it, or register "
                               "a gradient for it")});
  }
  return problems;
}

}  // namespace

std::vector<Problem> gradient_problems(const Graph& graph, std::span<Value* const> outputs, std::span<Value* const> wrt,
                                       const GradientOptions& options) {
  return problems_of(graph, active_values(graph, outputs, wrt), outputs, wrt, options);
}

std::vector<Value*> add_gradients(Graph& graph, std::span<Value* const> outputs, std::span<Value* const> seeds,
                                  std::span<Value* const> wrt, const GradientOptions& options) {
  ValueSet active = active_values(graph, outputs, wrt);
  throw_if_any(problems_of(graph, active, outputs, wrt, options));
  Reverse reverse(graph, std::move(active), options);
  for (std::size_t k = 0; k < outputs.size(); ++k) reverse.seed(outputs[k], k < seeds.size() ? seeds[k] : nullptr);
  reverse.run();
  std::vector<Value*> gradients;
  for (Value* v : wrt) gradients.push_back(reverse.result(v));
  return gradients;
}

}  // namespace backpass
