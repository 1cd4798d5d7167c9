#include "training/take_apart.hpp"

#include <algorithm>

#include "gradient/reverse.hpp"
#include "graph/clone.hpp"
#include "graph/effects.hpp"
#include "graph/halves.hpp"
#include "graph/same_values.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/original_gradients.hpp"
#include "model/parameters.hpp"
#include "ops/custom/function_gradient.hpp"
#include "training/unwrap.hpp"

namespace backpass {
namespace {

std::vector<Value*> inputs_named(const Graph& graph, std::span<const std::string> names) {
  std::vector<Value*> found;
  for (const std::string& name : names) {
    const auto at =
        std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](const Value* v) { return v->name == name; });
    if (at != graph.inputs.end()) found.push_back(*at);
  }
  return found;
}

std::unique_ptr<Graph> without_gradients(const Graph& training) {
  std::unique_ptr<Graph> forward = clone(training).graph;
  const auto first = forward->outputs.begin() + static_cast<std::ptrdiff_t>(forward->first_gradient);
  forward->outputs.erase(first, first + static_cast<std::ptrdiff_t>(forward->gradient_count));
  forward->first_gradient = 0;
  forward->gradient_count = 0;
  forward->remove_dead_nodes();
  return forward;
}

const Node* effect_of_gradients(const Graph& training) {
  const NodeSet later = second_half(training);
  const auto& nodes = training.nodes();
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const Node* n) { return later.count(n) != 0 && has_effect(*n); });
  return found == nodes.end() ? nullptr : *found;
}

/// What keeps gradients from being derived at all.
std::string obstacle_in(const Graph& forward, std::span<const std::string> trainable) {
  const std::vector<Value*> wrt = inputs_named(forward, trainable);
  if (wrt.size() != trainable.size()) return "a gradient belongs to no parameter";
  const std::vector<Value*> loss = {forward.outputs.at(0)};
  const std::vector<Problem> problems = gradient_problems(forward, loss, wrt);
  return problems.empty() ? "" : problems.front().text;
}

/// The first node of the gradient part that we would not have written, or null where all gradients are as we would
/// compute them.
class Comparison {
 public:
  Comparison(const Graph& training, const Graph& derived) : training_(training), derived_(derived) {
    same_.add(derived);
    known_ = same_.count();
    same_.add(training);
  }

  bool is_same() {
    for (std::size_t i = 0; i < training_.outputs.size(); ++i) {
      if (same_.number_of(training_.outputs[i]) != same_.number_of(derived_.outputs[i])) return false;
    }
    return true;
  }

  const Node* stranger() {
    const NodeSet later = second_half(training_);
    for (const Node* node : training_.nodes()) {
      if (later.count(node) == 0) continue;
      for (const Value* v : node->outputs) {
        if (v != nullptr && same_.number_of(v) >= known_) return node;
      }
    }
    return nullptr;
  }

 private:
  const Graph& training_;
  const Graph& derived_;
  SameValues same_;
  int known_ = 0;
};

/// The graph as it is after a file: reading one folds constants, and much has several forms that a file has one of.
std::unique_ptr<Graph> read_again(const Graph& graph, const onnx_io::ModelProto& file) {
  ExportOptions how;
  how.opset = std::max<std::int64_t>(how.opset, opset_of(file));
  return import_model(export_graph(graph, how)).graph;
}

/// What of the gradients is not the derivative as we would have written it.
struct Difference {
  bool exists = true;
  std::string node;
};

Difference difference(const Graph& training, const Graph& derived, const onnx_io::ModelProto& file) {
  if (Comparison(training, derived).is_same()) return {false, ""};
  const std::unique_ptr<Graph> again = read_again(derived, file);
  Comparison comparison(training, *again);
  if (comparison.is_same()) return {false, ""};
  const Node* node = comparison.stranger();
  return {true, node == nullptr ? "" : node->label()};
}

Report refusal(std::string node, const std::string& why) {
  return {.pass = "take_apart",
          .node = std::move(node),
          .what = "kept the gradients that the model came with: nothing is left out before they are computed",
          .why = why,
          .bytes_saved = "0"};
}

}  // namespace

void add_training_gradients(Graph& forward, std::size_t user_outputs, std::span<const std::string> trainable) {
  const std::vector<Value*> loss = {forward.outputs.at(0)};
  const std::vector<Value*> gradients = add_gradients(forward, loss, {}, inputs_named(forward, trainable));
  forward.outputs.insert(forward.outputs.begin() + static_cast<std::ptrdiff_t>(user_outputs), gradients.begin(),
                         gradients.end());
  forward.first_gradient = user_outputs;
  forward.gradient_count = gradients.size();
  own_outputs(forward);
  forward.remove_dead_nodes();
  remove_function_gradients(forward);
}

ForwardPart forward_part(const Graph& training, std::span<const std::string> trainable,
                         const onnx_io::ModelProto& file) {
  if (const Node* effect = effect_of_gradients(training)) {
    return {nullptr, refusal(effect->label(), "talks to other processes, which do as the model says")};
  }
  std::unique_ptr<Graph> forward = without_gradients(training);
  const std::string obstacle = obstacle_in(*forward, trainable);
  if (!obstacle.empty()) return {nullptr, refusal("", obstacle)};
  std::unique_ptr<Graph> derived = clone(*forward).graph;
  try {
    add_training_gradients(*derived, training.first_gradient, trainable);
  } catch (const Error& e) {  // ranks that rules need, and what bodies hold, only a trial tells
    return {nullptr, refusal("", e.what())};
  }
  const Difference found = difference(training, *derived, file);
  if (!found.exists) return {std::move(forward), {}};
  if (is_ours(file))
    return {nullptr, refusal(found.node, "is no part of the derivative of the loss as Backpass writes it")};
  const Stranger stranger = find_stranger(file.graph);
  if (!stranger.what.empty()) return {nullptr, refusal(stranger.node, stranger.what)};
  return {std::move(forward), {}};
}

bool computes_alike(const Graph& one, const Graph& other) {
  if (one.outputs.size() != other.outputs.size()) return false;
  SameValues same;
  same.add(one);
  same.add(other);
  return std::equal(one.outputs.begin(), one.outputs.end(), other.outputs.begin(),
                    [&](const Value* a, const Value* b) { return same.number_of(a) == same.number_of(b); });
}

}  // namespace backpass
