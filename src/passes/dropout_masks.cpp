#include <algorithm>
#include <optional>

#include "ops/random/dropout.hpp"
#include "ops/read_scalar.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

std::optional<double> known_scalar(const Value* v, double otherwise) {
  if (v == nullptr) return otherwise;
  if (!v->constant || v->constant->size() != 1 || v->constant->dtype() == DType::string) return std::nullopt;
  return read_scalar(v->constant->dtype(), v->constant->data());
}

/// Operands mean the same; each operator has its own meaning of leaving one out.
bool agree(const Value* a, double absent_a, const Value* b, double absent_b) {
  if (a != nullptr && a == b) return true;
  const std::optional<double> x = known_scalar(a, absent_a);
  return x && x == known_scalar(b, absent_b);
}

bool is_gradient_of(const Node& reader, const Node& dropout) {
  return reader.op == "DropoutGrad" && reader.domain == "com.microsoft" && reader.input(1) == dropout.output(1) &&
         reader.input(0) != dropout.output(1) &&
         agree(reader.input(2), dropout::kDefaultRatio, dropout.input(1), dropout::kDefaultRatio) &&
         agree(reader.input(3), 1, dropout.input(2), 0);
}

bool keeps_mask_for_gradients(const Node& node, const Graph& graph) {
  if (node.op != "Dropout" || !node.domain.empty() || node.output(1) == nullptr) return false;
  const std::vector<Node*>& readers = node.output(1)->readers;
  return !readers.empty() && !graph.is_output(node.output(1)) &&
         std::all_of(readers.begin(), readers.end(), [&](const Node* r) { return is_gradient_of(*r, node); });
}

}  // namespace

void dropout_masks(Graph& graph, Reports& reports) {
  for (Node* node : graph.nodes()) {
    if (!keeps_mask_for_gradients(*node, graph)) continue;
    const std::vector<Node*> readers = node->output(1)->readers;
    for (Node* reader : readers) {
      reader->attributes.clear();
      reader->attributes.emplace("stream", dropout::stream_name(*node));
      if (node->has_attribute("seed")) reader->attributes.emplace("seed", node->attr_int("seed"));
      graph.rewrite(*reader, "backpass", "DropoutGradAgain", {reader->input(0), node->input(1), node->input(2)});
    }
    reports.push_back({.node = node->label(),
                       .what = "mask of " + node->label() + " is drawn again instead of kept",
                       .why = "only its gradient reads it, and random numbers are cheaper than memory",
                       .bytes_saved = bytes_of(node->output(1))});
    node->outputs.resize(1);
  }
}

}  // namespace backpass
