#include "passes/match_head.hpp"

#include <algorithm>

namespace backpass {
namespace {

using Perm = std::vector<std::int64_t>;

bool is_op(const Node* node, std::string_view op) { return node != nullptr && node->domain.empty() && node->op == op; }

std::size_t rank_of(const Value* v) {
  return v != nullptr && v->type.is_tensor() && v->type.shape ? v->type.shape->size() : 0;
}

bool ends_with_classes(const Value* v, std::int64_t classes) {
  return rank_of(v) > 0 && v->type.shape->back().is(classes);
}

std::optional<std::int64_t> constant_integer(const Value* v) {
  if (!v->constant || v->constant->size() != 1) return std::nullopt;
  std::optional<std::int64_t> value;
  if (v->constant->dtype() == DType::int64) value = *v->constant->as<std::int64_t>();
  if (v->constant->dtype() == DType::int32) value = *v->constant->as<std::int32_t>();
  return value;
}

/// A Slice that leaves the last axis alone; its axes must be known.
bool slices_rows(const Node& node) {
  const auto rank = static_cast<std::int64_t>(rank_of(node.input(0)));
  const Value* axes = node.input(3);
  if (rank == 0 || axes == nullptr || !axes->constant || axes->constant->dtype() != DType::int64) return false;
  const auto* axis = axes->constant->as<std::int64_t>();
  return std::all_of(axis, axis + axes->constant->size(), [&](std::int64_t a) { return a != -1 && a != rank - 1; });
}

class Matcher {
 public:
  Matcher(const Graph& graph, Node& loss) : graph_(graph) { head_.loss = &loss; }

  std::optional<Head> run() {
    Value* at = scores_of_loss();
    if (at == nullptr) return std::nullopt;
    at = before_transposition(at);
    if (at == nullptr) return std::nullopt;
    at = walk(at);
    if (at == nullptr || !take_product(at->producer)) return std::nullopt;
    std::reverse(head_.way.begin(), head_.way.end());
    return head_;
  }

 private:
  /// What the loss is computed from, if it is the cross entropy of scores.
  Value* scores_of_loss() {
    const Node& loss = *head_.loss;
    if (loss.has_attribute("ignore_index")) head_.ignore_index = loss.attr_int("ignore_index", 0);
    head_.scores = loss.input(0);
    if (is_op(&loss, "SoftmaxCrossEntropyLoss")) return with_classes(head_.scores);
    if (loss.op == "SoftmaxCrossEntropyLossInternal" && loss.domain == "com.microsoft") {
      if (loss.output(0)->type.dtype != head_.scores->type.dtype || !take_ignored_input()) return nullptr;
      return with_classes(head_.scores);
    }
    if (!is_op(&loss, "NegativeLogLikelihoodLoss")) return nullptr;
    const Node* log = head_.scores->producer;
    if (!is_op(log, "LogSoftmax") || graph_.only_reader(head_.scores) != &loss) return nullptr;
    head_.scores = log->input(0);
    const auto rank = static_cast<std::int64_t>(rank_of(head_.scores));
    const std::int64_t axis = log->attr_int("axis", -1);
    if (rank < 2 || (axis < 0 ? axis + rank : axis) != 1) return nullptr;
    return with_classes(head_.scores);
  }

  bool take_ignored_input() {
    const Value* input = head_.loss->input(3);
    if (input == nullptr) return true;
    head_.ignore_index = constant_integer(input);
    return head_.ignore_index.has_value();
  }

  Value* with_classes(Value* scores) {
    if (rank_of(scores) < 2 || !(*scores->type.shape)[1].is_known()) return nullptr;
    head_.classes = (*scores->type.shape)[1].value();
    return only_read_once(scores) ? scores : nullptr;
  }

  /// By the way to the loss; and for its extents, by what arranges the gradients that go with the scores.
  bool only_read_once(const Value* v) const {
    const auto readers = std::count_if(v->readers.begin(), v->readers.end(),
                                       [&](const Node* node) { return !is_shape_of_gradients(node); });
    return readers == 1 && !graph_.is_output(v);
  }

  bool is_shape_of_gradients(const Node* node) const {
    if (!is_op(node, "Shape") || graph_.is_output(node->output(0))) return false;
    const std::vector<Node*>& readers = node->output(0)->readers;
    return std::all_of(readers.begin(), readers.end(), [&](const Node* r) {
      return is_op(r, "Reshape") && r->input(0) != node->output(0) && ends_with_classes(r->output(0), head_.classes);
    });
  }

  /// The loss has its classes at axis 1: with positions behind it, they come from the last axis.
  Value* before_transposition(Value* scores) {
    const std::size_t rank = rank_of(scores);
    if (rank == 2) return scores;
    const Node* node = scores->producer;
    if (!is_op(node, "Transpose")) return nullptr;
    Perm moved{0, static_cast<std::int64_t>(rank) - 1};
    for (std::size_t i = 1; i + 1 < rank; ++i) moved.push_back(static_cast<std::int64_t>(i));
    if (node->attr_ints("perm") != moved || !only_read_once(node->input(0))) return nullptr;
    return node->input(0);
  }

  /// From the loss back to the product or to the sum with a bias behind it.
  Value* walk(Value* at) {
    while (Node* node = at->producer) {
      const bool reshape = is_op(node, "Reshape") && ends_with_classes(node->input(0), head_.classes);
      const bool slice = is_op(node, "Slice") && slices_rows(*node);
      if (!reshape && !slice && !is_op(node, "Identity")) break;
      if (reshape || slice) head_.way.push_back(node);
      at = node->input(0);
      if (!only_read_once(at)) return nullptr;
    }
    if (!is_op(at->producer, "Add")) return at;
    for (std::size_t i = 0; i < 2; ++i) {
      Value* bias = at->producer->input(i);
      Value* product = at->producer->input(1 - i);
      if (!is_bias(bias) || rank_of(product) < 2 || !only_read_once(product)) continue;
      head_.bias = bias;
      return product;
    }
    return nullptr;
  }

  bool is_bias(const Value* v) const { return rank_of(v) == 1 && ends_with_classes(v, head_.classes); }

  bool take_product(Node* node) {
    const bool is_gemm = is_op(node, "Gemm");
    if (!is_gemm && !is_op(node, "MatMul")) return false;
    head_.product = node;
    head_.x = node->input(0);
    head_.weight = node->input(1);
    if (is_gemm && !take_gemm(*node)) return false;
    const Node* swap = head_.weight->producer;
    if (is_op(swap, "Transpose") && rank_of(swap->input(0)) == 2 && swap->attr_ints("perm", {1, 0}) == Perm{1, 0}) {
      head_.weight = swap->input(0);
      head_.classes_first = !head_.classes_first;
    }
    return rank_of(head_.x) >= 2 && rank_of(head_.weight) == 2 && is_float(head_.x->type.dtype);
  }

  bool take_gemm(const Node& node) {
    if (node.attr_int("transA", 0) != 0 || node.attr_float("alpha", 1) != 1) return false;
    head_.classes_first = node.attr_int("transB", 0) != 0;
    const float beta = node.attr_float("beta", 1);
    if (node.input(2) == nullptr || beta == 0) return true;
    if (beta != 1 || head_.bias != nullptr || !is_bias(node.input(2))) return false;
    head_.bias = node.input(2);
    return true;
  }

  const Graph& graph_;
  Head head_;
};

}  // namespace

std::optional<Head> match_head(const Graph& graph, Node& loss) { return Matcher(graph, loss).run(); }

}  // namespace backpass
