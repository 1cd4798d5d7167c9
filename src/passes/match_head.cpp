#include "passes/match_head.hpp"

#include <algorithm>

#include "graph/op.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;
using pattern::rank_of;

using Perm = std::vector<std::int64_t>;

bool is_internal(const Node& loss) {
  return loss.op == "SoftmaxCrossEntropyLossInternal" && loss.domain == "com.microsoft";
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

bool is_before_last(std::int64_t axis, const Value* v) {
  const auto rank = static_cast<std::int64_t>(rank_of(v));
  return axis != -1 && axis < rank - 1;
}

/// A Slice that leaves the last axis alone; its axes must be known.
bool slices_rows(const Node& node) {
  const Value* axes = node.input(3);
  if (rank_of(node.input(0)) == 0 || axes == nullptr || !axes->constant || axes->constant->dtype() != DType::int64) {
    return false;
  }
  const auto* axis = axes->constant->as<std::int64_t>();
  return std::all_of(axis, axis + axes->constant->size(),
                     [&](std::int64_t a) { return is_before_last(a, node.input(0)); });
}

bool gathers_rows(const Node& node) {
  if (is_op(&node, "Gather")) return is_before_last(node.attr_int("axis", 0), node.input(0));
  const Value* indices = node.input(1);
  if (node.attr_int("batch_dims", 0) != 0 || rank_of(indices) == 0) return false;
  const Dim& depth = indices->type.shape->back();
  return depth.is_known() && is_before_last(depth.value() - 1, node.input(0));
}

bool keeps_last_axis(const Node& node) {
  const Perm perm = node.attr_ints("perm");
  return !perm.empty() && perm.back() == static_cast<std::int64_t>(perm.size()) - 1;
}

/// Times, or divided by, one number.
bool scales(const Node& node) {
  if (!is_op(&node, "Mul") && !is_op(&node, "Div")) return false;
  const Value* by = node.input(1);
  return by->type.is_tensor() && by->type.shape && rank_of(by) <= rank_of(node.input(0)) &&
         std::all_of(by->type.shape->begin(), by->type.shape->end(), [](const Dim& d) { return d.is(1); });
}

/// Input 0 of this node is scores as its output is; what it does to rows can be done to those of x.
bool treats_rows(const Node& node) {
  if (is_op(&node, "Reshape") || is_op(&node, "Flatten") || is_op(&node, "Squeeze") || is_op(&node, "Unsqueeze")) {
    return true;
  }
  if (is_op(&node, "Slice")) return slices_rows(node);
  if (is_op(&node, "Gather") || is_op(&node, "GatherND")) return gathers_rows(node);
  return is_op(&node, "Transpose") ? keeps_last_axis(node) : scales(node);
}

/// To more digits.
bool widens(const Node& node) {
  return is_op(&node, "Cast") && types::halves.has(node.input(0)->type.dtype) &&
         node.output(0)->type.dtype == DType::float32;
}

class Matcher {
 public:
  Matcher(const Graph& graph, Node& loss) : graph_(graph) { head_.loss = &loss; }

  HeadMatch run() {
    Value* scores = scores_of_loss();
    if (scores == nullptr) return {};
    Value* at = before_transposition(scores);
    if (at != nullptr) at = walk(at);
    if (at == nullptr || !take_product(at->producer) || !fits_types()) return {{}, why_not_, head_.classes};
    std::reverse(head_.way.begin(), head_.way.end());
    const std::int64_t classes = head_.classes;
    return {std::move(head_), "", classes};
  }

 private:
  std::nullptr_t refuse(std::string why) {
    why_not_ = std::move(why);
    return nullptr;
  }

  /// What the loss is computed from, if it is the cross entropy of scores.
  Value* scores_of_loss() {
    const Node& loss = *head_.loss;
    if (loss.has_attribute("ignore_index")) head_.ignore_index = loss.attr_int("ignore_index", 0);
    head_.labels = loss.input(1);
    head_.class_weights = loss.input(2);
    head_.reduction = loss.attr_string("reduction", "mean");
    if (is_op(&loss, "SoftmaxCrossEntropyLoss") || is_internal(loss)) return with_classes(loss.input(0));
    if (!is_op(&loss, "NegativeLogLikelihoodLoss")) return nullptr;
    const Node* log = loss.input(0)->producer;
    if (!is_op(log, "LogSoftmax") || with_classes(log->input(0)) == nullptr) return nullptr;
    const auto rank = static_cast<std::int64_t>(rank_of(log->input(0)));
    const std::int64_t axis = log->attr_int("axis", -1);
    if ((axis < 0 ? axis + rank : axis) != 1) return nullptr;
    take_smoothing(*log);
    return log->input(0);
  }

  Value* with_classes(Value* scores) {
    if (rank_of(scores) < 2 || !(*scores->type.shape)[1].is_known()) return nullptr;
    head_.classes = (*scores->type.shape)[1].value();
    scores_type_ = scores->type.dtype;
    return scores;
  }

  void take_smoothing(const Node& log) {
    Node& label_loss = *head_.loss;
    if (graph_.only_reader(log.output(0)) == &label_loss) return;
    if (const auto smoothed = match_smoothing(graph_, label_loss, head_.classes)) {
      head_.loss = smoothed->result;
      head_.reduction = smoothed->reduction;
      head_.smoothing = smoothed->smoothing;
      return;
    }
    is_log_read_ = true;
  }

  bool take_ignored_input() {
    const Node& loss = *head_.loss;
    if (!is_internal(loss)) return true;
    head_.mean_of_none = 0.0F;
    if (loss.input(3) == nullptr) return true;
    head_.ignore_index = constant_integer(loss.input(3));
    return head_.ignore_index.has_value();
  }

  /// By the way to the loss.
  bool only_read_once(const Value* v) {
    if (graph_.is_output(v)) {
      refuse("the scores '" + v->name + "' are a result");
      return false;
    }
    std::vector<const Node*> readers;
    // Extents can be had from x, when classes are on the last axis.
    for (const Node* node : v->readers) {
      if (!is_op(node, "Shape") || !ends_with_classes(v, head_.classes)) readers.push_back(node);
    }
    if (readers.size() > 1) refuse("the scores '" + v->name + "' have other readers: " + listed(readers));
    return readers.size() == 1;
  }

  static std::string listed(const std::vector<const Node*>& nodes) {
    constexpr std::size_t kMost = 3;
    std::string text;
    for (std::size_t i = 0; i < std::min(kMost, nodes.size()); ++i) text += (i > 0 ? ", " : "") + nodes[i]->label();
    return text + (nodes.size() > kMost ? ", ..." : "");
  }

  /// The loss has its classes at axis 1: with positions behind it, they come from the last axis.
  Value* before_transposition(Value* scores) {
    if (is_log_read_) return refuse("the log probabilities have other readers");
    if (!take_ignored_input()) return refuse("ignore_index is not known before running");
    if (!only_read_once(scores)) return nullptr;
    const std::size_t rank = rank_of(scores);
    if (rank == 2) return scores;
    scores = before_widening(scores);
    if (scores == nullptr) return nullptr;
    const Node* node = scores->producer;
    Perm moved{0, static_cast<std::int64_t>(rank) - 1};
    for (std::size_t i = 1; i + 1 < rank; ++i) moved.push_back(static_cast<std::int64_t>(i));
    if (!is_op(node, "Transpose") || node->attr_ints("perm") != moved) {
      return refuse("the classes of '" + scores->name + "' do not come from its last axis");
    }
    return only_read_once(node->input(0)) ? node->input(0) : nullptr;
  }

  /// From the loss back to the product or to the sum with a bias behind it.
  Value* walk(Value* at) {
    while (Node* node = at->producer) {
      const bool treats = treats_rows(*node) && ends_with_classes(node->input(0), head_.classes);
      if (!treats && !is_op(node, "Identity") && !widens(*node)) break;
      head_.way.push_back({at, treats ? node : nullptr});
      at = node->input(0);
      if (!only_read_once(at)) return nullptr;
    }
    head_.way.push_back({at, nullptr});
    if (!is_op(at->producer, "Add")) return at;
    for (std::size_t i = 0; i < 2; ++i) {
      Value* bias = at->producer->input(i);
      Value* product = at->producer->input(1 - i);
      if (!is_bias(bias) || rank_of(product) < 2 || is_bias(product)) continue;
      head_.bias = bias;
      return before_widening(product);
    }
    return refuse("something is added to the scores by " + at->producer->label());
  }

  Value* before_widening(Value* product) {
    if (!only_read_once(product)) return nullptr;
    const Node* node = product->producer;
    if (node == nullptr || !widens(*node)) return product;
    return only_read_once(node->input(0)) ? node->input(0) : nullptr;
  }

  bool is_bias(const Value* v) const {
    return ends_with_classes(v, head_.classes) &&
           std::all_of(v->type.shape->begin(), v->type.shape->end() - 1, [](const Dim& d) { return d.is(1); });
  }

  bool take_product(Node* node) {
    const bool is_gemm = is_op(node, "Gemm");
    if (!is_gemm && !is_op(node, "MatMul")) {
      refuse(node == nullptr ? "the scores are fed"
                             : "the scores come from " + node->label() + ", which is no product");
      return false;
    }
    head_.product = node;
    head_.x = node->input(0);
    head_.weight = node->input(1);
    if ((is_gemm && !take_gemm(*node)) || rank_of(head_.x) < 2 || rank_of(head_.weight) != 2) {
      refuse(node->label() + " is no product of rows with the weights of classes");
      return false;
    }
    head_.product_type = head_.x->type.dtype;
    take_source_of_weight();
    return true;
  }

  /// What the weight is a transposition, or a copy of fewer digits, of.
  void take_source_of_weight() {
    while (const Node* node = head_.weight->producer) {
      const bool swaps = is_op(node, "Transpose") && node->attr_ints("perm", {1, 0}) == Perm{1, 0};
      const bool narrows = is_op(node, "Cast") && types::halves.has(head_.product_type) &&
                           head_.weight->type.dtype == head_.product_type &&
                           node->input(0)->type.dtype == DType::float32;
      if (!swaps && !narrows) break;
      if (swaps) head_.classes_first = !head_.classes_first;
      head_.weight = node->input(0);
    }
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

  bool fits_types() {
    const DType scores = scores_type_;
    const DType loss = head_.loss->output(0)->type.dtype;
    const bool fits = is_float(head_.product_type) && scores == loss;
    if (!fits) refuse("scores are " + std::string(name_of(scores)) + ", the loss is " + std::string(name_of(loss)));
    return fits;
  }

  const Graph& graph_;
  Head head_;
  DType scores_type_ = DType::undefined;  // as the loss reads them
  bool is_log_read_ = false;
  std::string why_not_;
};

}  // namespace

HeadMatch match_head(const Graph& graph, Node& loss) { return Matcher(graph, loss).run(); }

}  // namespace backpass
