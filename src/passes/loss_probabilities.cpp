#include <algorithm>

#include "passes/list.hpp"

namespace backpass {
namespace {

bool is_loss(const Node& node) {
  return (node.op == "SoftmaxCrossEntropyLoss" && node.domain.empty()) ||
         (node.op == "SoftmaxCrossEntropyLossInternal" && node.domain == "com.microsoft");
}

/// A gradient that nothing is added to, of the element type of the scores.
bool is_plain_gradient(const Node& reader, const Value* log_prob) {
  if (reader.domain != "com.microsoft" || reader.input(1) != log_prob || reader.input(0) == log_prob) return false;
  const bool is_internal = reader.op == "SoftmaxCrossEntropyLossInternalGrad";
  if (!is_internal && reader.op != "SoftmaxCrossEntropyLossGrad") return false;
  return reader.input(is_internal ? 5 : 4) == nullptr && reader.output(0)->type.dtype == log_prob->type.dtype;
}

bool keeps_probabilities_for_gradients(const Node& node, const Graph& graph) {
  const Value* log_prob = is_loss(node) ? node.output(1) : nullptr;
  if (log_prob == nullptr || graph.is_output(log_prob) || node.input(0)->type.dtype != log_prob->type.dtype)
    return false;
  const std::vector<Node*>& readers = log_prob->readers;
  return !readers.empty() &&
         std::all_of(readers.begin(), readers.end(), [&](const Node* r) { return is_plain_gradient(*r, log_prob); });
}

}  // namespace

void loss_probabilities(Graph& graph, Reports& reports) {
  for (Node* node : graph.nodes()) {
    if (!keeps_probabilities_for_gradients(*node, graph)) continue;
    const std::vector<Node*> readers = node->output(1)->readers;
    for (Node* reader : readers) {
      std::vector<Value*> inputs = reader->inputs;
      inputs[1] = node->input(0);
      reader->attributes.erase("output_type");
      graph.rewrite(*reader, "backpass", "SoftmaxCrossEntropyLossGradAgain", inputs);
    }
    reports.push_back(
        {.node = node->label(),
         .what = "log probabilities of " + node->label() + " are computed again instead of kept",
         .why = "only its gradient reads them, and to compute them is cheaper than to write and read them",
         .bytes_saved = bytes_of(node->output(1))});
    node->outputs.resize(1);
  }
}

}  // namespace backpass
