#include "graph/infer.hpp"

#include <algorithm>
#include <set>

#include "graph/blame.hpp"
#include "graph/builder.hpp"
#include "graph/evaluate.hpp"

namespace backpass {
namespace {

// Larger constant results are left to the constant folding pass, which knows what they cost.
constexpr std::int64_t kSmallConstant = 4096;

InferContext facts_of(const Node& node) {
  std::vector<const Type*> types;
  std::vector<const Tensor*> constants;
  std::vector<const std::vector<Dim>*> ints;
  for (const Value* v : node.inputs) {
    types.push_back(v == nullptr ? nullptr : &v->type);
    constants.push_back(v != nullptr && v->constant ? &*v->constant : nullptr);
    ints.push_back(v != nullptr && v->ints ? &*v->ints : nullptr);
  }
  return {node, std::move(types), std::move(constants), std::move(ints)};
}

void check_dtype(const InferContext& c) {
  const OpDef& def = *c.node.def;
  if (def.types.empty() || !c.has_input(0)) return;
  const Type& t = c.type(0);
  if (!t.is_tensor() || def.types.has(t.dtype)) return;
  fail<Unsupported>(c.node.label(), " element type of input 0: got ", name_of(t.dtype), ", expected one of ",
                    def.types.str());
}

// A shape whose bytes nobody can count is refused here, so that kernels may multiply extents without fear.
void check_countable(const Type& type) {
  if (type.is_tensor() && type.shape && is_known(*type.shape)) {
    byte_size(type.dtype, element_count(to_dims(*type.shape)));
  }
}

void substitute(Graph& graph, const std::map<std::string, Dim>& known) {
  auto rewrite = [&](std::vector<Dim>& dims) {
    for (Dim& d : dims) d = d.substituted(known);
  };
  for (const auto& v : graph.values()) {
    if (v->type.shape) rewrite(*v->type.shape);
    if (v->ints) rewrite(*v->ints);
  }
}

void bind_captures(const Node& node) {
  for (const auto& [key, graph] : node.subgraphs) {
    for (const Capture& c : graph->captures) {
      c.inner->type = c.outer->type;
      c.inner->constant = c.outer->constant;
      c.inner->ints = c.outer->ints;
    }
  }
}

/// What nodes that ask for derivatives differentiate by.
std::set<const Value*> differentiated_by(const Graph& graph) {
  std::set<const Value*> found;
  for (const Node* node : graph.nodes()) {
    if (node->def == nullptr || !node->def->is_gradient_request) continue;
    found.insert(node->inputs.begin(), node->inputs.end());
  }
  return found;
}

class Elaboration {
 public:
  explicit Elaboration(Graph& graph) : graph_(graph), kept_(differentiated_by(graph)) {}

  std::vector<Problem> run() {
    for (std::size_t i = 0; i < graph_.nodes().size();) {
      Node* node = graph_.nodes()[i];
      std::size_t before = graph_.nodes().size();
      guarded(*node);
      // Nodes that lifting or expansion put in front of this one were inferred as they were made.
      i += graph_.nodes().size() - before + 1;
    }
    return std::move(problems_);
  }

 private:
  void guarded(Node& node) {
    const std::string name = node.name;
    const std::string op = node.op;
    auto note = [&](Problem::Kind kind, const char* text) { problems_.push_back({kind, name, op, text}); };
    try {
      blaming(node, [&] { elaborate(node); });
    } catch (const Unsupported& e) {
      note(Problem::Kind::unsupported, e.what());
    } catch (const InvalidInput& e) {
      note(Problem::Kind::invalid, e.what());
    }
  }

  void elaborate(Node& node) {
    lift(node);
    if (node.def == nullptr) {
      fail<Unsupported>(node.label(), " operator: got ", node.domain.empty() ? "ai.onnx" : node.domain, ".", node.op,
                        ", which Backpass does not have; replace it or inline its function");
    }
    for (const std::string& problem : verify_arity(node)) fail(problem);
    bind_captures(node);
    infer_node(graph_, node);
    if (!fold(node) && node.def->expand != nullptr && knows_inputs(node)) expand(node);
  }

  /// False behind a node that had a problem of its own: expanding would only repeat it.
  static bool knows_inputs(const Node& node) {
    return std::none_of(node.inputs.begin(), node.inputs.end(),
                        [](const Value* v) { return v != nullptr && v->type.kind == Type::Kind::unknown; });
  }

  void expand(Node& node) {
    Builder builder(graph_, &node, node.name.empty() ? node.op : node.name);
    std::vector<Value*> results = node.def->expand(builder, node);
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      Value* original = node.outputs[k];
      if (original == nullptr) continue;
      Value* replacement = results.at(k);
      take_over(original, replacement);
      std::replace(results.begin(), results.end(), replacement, original);
    }
  }

  void lift(Node& node) {
    if (node.opset == 0) return;
    std::int64_t opset = node.opset;
    // Adapters look at the first input; what it is not there for is said here.
    const OpDef* newest = find_op(node.domain, node.op);
    const bool takes_input = newest != nullptr && newest->inputs.min > 0 && node.subgraphs.empty();
    if (takes_input && node.input(0) == nullptr) fail(node.label(), " input 0: got none, expected a value");
    for (const Adapter* adapter : adapters_for(node.domain, node.op, opset)) {
      std::string op = node.op;
      Builder builder(graph_, &node, node.name.empty() ? node.op : node.name);
      adapter->lift(builder, node);
      if (node.op != op) break;
    }
    node.opset = 0;
    node.def = find_op(node.domain, node.op);
  }

  bool fold(Node& node) {
    if (!can_fold(node)) return false;
    std::vector<RuntimeValue> inputs;
    for (const Value* v : node.inputs) inputs.push_back(v == nullptr ? RuntimeValue() : RuntimeValue(*v->constant));
    // A Constant's tensor is shared with the model file, however large.
    const Tensor* value = node.op == "Constant" ? node.attr_tensor("value") : nullptr;
    std::vector<RuntimeValue> results =
        value != nullptr ? std::vector<RuntimeValue>{*value} : evaluate_node(node, std::move(inputs));
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      if (node.outputs[k] == nullptr || !results[k].is_tensor()) continue;
      node.outputs[k]->type = Type::tensor(results[k].tensor.dtype(), to_shape(results[k].tensor.dims()));
      node.outputs[k]->constant = results[k].tensor;
      node.outputs[k]->producer = nullptr;
    }
    node.outputs.clear();
    return true;
  }

  bool can_fold(const Node& node) const {
    const OpDef& def = *node.def;
    if (def.is_random || !node.subgraphs.empty() || (def.prepare == nullptr && def.compute == nullptr)) return false;
    for (const Value* v : node.inputs) {
      if (v != nullptr && (!v->constant || kept_.count(v) != 0)) return false;
    }
    for (const Value* v : node.outputs) {
      if (v == nullptr) continue;
      if (!v->type.is_tensor()) return false;
      if (!v->type.shape || node.op == "Constant")
        continue;  // size depends on data that is constant: the result decides
      Dim count = product(*v->type.shape);
      if (count.is_known() && count.value() > kSmallConstant) return false;
    }
    return true;
  }

  // The original output keeps its identity (graph outputs and names refer to it): it becomes the output of the node
  // that computes the replacement, or an Identity of a value defined elsewhere.
  void take_over(Value* original, Value* replacement) {
    ensure(replacement != nullptr, "expansion gave no value for '", original->name, "'");
    Node* producer = replacement->producer;
    bool local = producer != nullptr && !graph_.is_output(replacement);
    original->type = replacement->type;
    original->ints = replacement->ints;
    Node* old = original->producer;
    for (Value*& v : old->outputs) {
      if (v == original) v = nullptr;
    }
    if (!local) {
      Node* identity = graph_.add_node("Identity", {replacement}, {original}, old->name, "", old);
      ensure(identity->def != nullptr, "Identity is not registered");
      return;
    }
    for (Value*& v : producer->outputs) {
      if (v == replacement) v = original;
    }
    original->producer = producer;
    graph_.replace_uses(replacement, original);
    replacement->producer = nullptr;
  }

  Graph& graph_;
  std::set<const Value*> kept_;
  std::vector<Problem> problems_;
};

}  // namespace

bool run_infer_rule(InferContext& c) {
  ensure(c.node.def != nullptr, shown(c.node), " has no definition");
  if (c.node.def->infer == nullptr) return false;
  try {
    c.node.def->infer(c);
    return true;
  } catch (const NotKnownYet&) {
    return false;
  }
}

void infer_node(Graph& graph, Node& node) {
  InferContext c = facts_of(node);
  check_dtype(c);
  run_infer_rule(c);
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == nullptr) continue;
    check_countable(c.outputs[k]);
    if (c.outputs[k].kind != Type::Kind::unknown) node.outputs[k]->type = std::move(c.outputs[k]);
    node.outputs[k]->ints = std::move(c.output_ints[k]);
  }
  std::map<std::string, Dim> found;
  for (auto& [symbol, dim] : c.equalities) found.emplace(symbol, dim);
  if (found.empty()) return;
  substitute(graph, found);
  graph.equalities.merge(found);
}

std::map<std::string, Dim> bounds_of_found_extents(const Graph& graph) {
  std::map<std::string, Dim> bounds;
  for (const Node* node : graph.nodes()) {
    if (node->def == nullptr || node->def->compute == nullptr || !node->subgraphs.empty()) continue;
    InferContext c = facts_of(*node);
    run_infer_rule(c);
    bounds.merge(c.most);
  }
  return bounds;
}

std::vector<Problem> infer_graph(Graph& graph) { return Elaboration(graph).run(); }

}  // namespace backpass
