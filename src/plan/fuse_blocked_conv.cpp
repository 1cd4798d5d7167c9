#include <algorithm>
#include <optional>
#include <unordered_map>

#include "graph/op.hpp"
#include "passes/match_activation.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

bool is_conv(const Node* node) { return node != nullptr && node->domain == "backpass" && node->op == "BlockedConv"; }

class Fuser {
 public:
  Fuser(Graph& graph, Reports& reports) : graph_(graph), reports_(reports) {
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) position_[graph.nodes()[i]] = i;
  }

  void run() {
    std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      bool fresh = is_conv(node) && !node->has_attribute("activation") && node->input(3) == nullptr;
      if (fresh && graph_.use_count(node->output(0)) > 0) fuse(node);
    }
    graph_.remove_dead_nodes();
  }

 private:
  void fuse(Node* conv) {
    Node* last = conv;
    Value* residual = nullptr;
    std::string parts;
    std::vector<Value*> inner{conv->output(0)};
    if (Node* add = residual_add(conv)) {
      residual = add->input(add->input(0) == conv->output(0) ? 1 : 0);
      last = add;
      parts = "residual";
    }
    std::optional<MatchedActivation> activation = match_activation(graph_, last->output(0));
    if (activation) {
      if (last != conv) inner.push_back(last->output(0));
      last = activation->last;
      parts += (parts.empty() ? "" : " and ") + std::string(activation->tile.function->name);
    }
    if (last == conv) return;
    reports_.push_back({.node = conv->label(),
                        .what = "fused " + conv->label() + " with " + parts,
                        .why = "results are changed while they are still in registers",
                        .bytes_saved = bytes_of(inner)});
    rewrite(conv, last, residual, activation ? activation->tile : UnaryTile{});
  }

  /// An Add of the convolution with a value of the same shape that is not its own input. Of two convolutions that meet,
  /// the later one takes the sum.
  Node* residual_add(const Node* conv) {
    Node* add = graph_.only_reader(conv->output(0));
    if (add == nullptr || !add->domain.empty() || add->op != "Add") return nullptr;
    const Value* other = add->input(add->input(0) == conv->output(0) ? 1 : 0);
    if (other == conv->output(0) || other == conv->input(0) || other->constant) return nullptr;
    if (!other->type.shape || *other->type.shape != *conv->output(0)->type.shape) return nullptr;
    bool other_is_later = is_conv(other->producer) && position_[other->producer] > position_[conv] &&
                          graph_.only_reader(other) == add && other->producer->input(3) == nullptr;
    return other_is_later ? nullptr : add;
  }

  void rewrite(Node* conv, Node* last, Value* residual, const UnaryTile& activation) {
    std::vector<Value*> inputs = conv->inputs;
    inputs.resize(residual != nullptr ? 4 : 3, nullptr);
    if (residual != nullptr) inputs[3] = residual;
    auto attributes = conv->attributes;
    std::string name = conv->name;
    graph_.rewrite(*last, "backpass", "BlockedConv", inputs);
    last->attributes = std::move(attributes);
    last->name = std::move(name);
    set_activation(*last, activation);
  }

  Graph& graph_;
  Reports& reports_;
  std::unordered_map<const Node*, std::size_t> position_;
};

}  // namespace

void fuse_blocked_conv(Graph& graph, Reports& reports) {
  if (std::any_of(graph.nodes().begin(), graph.nodes().end(), is_conv)) Fuser(graph, reports).run();
}

}  // namespace backpass
