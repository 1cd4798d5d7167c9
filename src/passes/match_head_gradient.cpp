#include <algorithm>
#include <set>

#include "passes/match_head.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;

/// The same elements in the same order, rows of the same length.
bool keeps_rows(const Node* node) {
  if (!is_op(node, "Reshape") && !is_op(node, "Flatten") && !is_op(node, "Identity")) return false;
  const Type& from = node->input(0)->type;
  const Type& to = node->output(0)->type;
  return from.shape && to.shape && !from.shape->empty() && !to.shape->empty() && from.shape->back().is_known() &&
         from.shape->back() == to.shape->back();
}

bool are_rows_of(const Value* v, const Value* x) {
  while (v != x && keeps_rows(v->producer)) v = v->producer->input(0);
  return v == x;
}

class Matcher {
 public:
  Matcher(const Graph& graph, const Head& head) : graph_(graph), head_(head) {}

  std::optional<HeadGradient> run() {
    const Value* log_prob = head_.loss->output(1);
    if (log_prob == nullptr || !take_node(graph_.only_reader(log_prob), log_prob)) return std::nullopt;
    Value* scores = found_.node->output(0);
    if (scores->type.dtype != head_.scores()->type.dtype || !walk(before_transposition(scores))) return std::nullopt;
    return found_;
  }

 private:
  bool take_node(Node* node, const Value* log_prob) {
    if (node == nullptr || node->domain != "com.microsoft" || node->input(1) != log_prob) return false;
    const bool is_internal = node->op == "SoftmaxCrossEntropyLossInternalGrad";
    if (!is_internal && node->op != "SoftmaxCrossEntropyLossGrad") return false;
    const Node& loss = *head_.loss;
    const bool same_labels = node->input(2) == loss.input(1) && node->input(3) == loss.input(2);
    const bool same_ignored = is_internal ? node->input(4) == loss.input(3) : loss.domain.empty();
    const bool same_sum = node->attr_string("reduction", "mean") == loss.attr_string("reduction", "mean");
    const bool same_index = node->attr_int("ignore_index", -1) == loss.attr_int("ignore_index", -1) &&
                            node->has_attribute("ignore_index") == loss.has_attribute("ignore_index");
    found_.node = node;
    found_.flow = node->input(0);
    const bool adds = node->input(is_internal ? 5 : 4) != nullptr;
    return same_labels && same_ignored && same_sum && same_index && !adds;
  }

  /// Back to classes on the last axis, when the loss had them elsewhere.
  Value* before_transposition(Value* scores) const {
    const std::size_t rank = scores->type.shape ? scores->type.shape->size() : 0;
    if (rank == 2) return scores;
    const Node* node = graph_.only_reader(scores);
    if (rank < 3 || !is_op(node, "Transpose")) return nullptr;
    std::vector<std::int64_t> back{0};
    for (std::size_t i = 2; i < rank; ++i) back.push_back(static_cast<std::int64_t>(i));
    back.push_back(1);
    return node->attr_ints("perm") == back ? node->output(0) : nullptr;
  }

  bool walk(Value* gradient) {
    if (gradient == nullptr || graph_.is_output(gradient)) return false;
    const std::set<Node*> readers(gradient->readers.begin(), gradient->readers.end());
    for (Node* node : readers) {
      const bool known = keeps_rows(node)
                             ? walk(node->output(0))
                             : take_dx(*node, gradient) || take_dweight(*node, gradient) || take_dbias(*node, gradient);
      if (!known) return false;
    }
    return true;
  }

  static bool is_plain_product(const Node& node) {
    return is_op(&node, "Gemm") && node.input(2) == nullptr && node.attr_float("alpha", 1) == 1;
  }

  bool take_dx(const Node& node, const Value* gradient) {
    const bool was_transposed = is_op(head_.product, "Gemm") && head_.product->attr_int("transB", 0) != 0;
    const bool is_transposed = node.attr_int("transB", 0) != 0;
    if (!is_plain_product(node) || node.input(0) != gradient || node.input(1) != head_.product->input(1)) return false;
    if (node.attr_int("transA", 0) != 0 || is_transposed == was_transposed || found_.dx != nullptr) return false;
    found_.dx = node.output(0);
    return true;
  }

  bool take_dweight(const Node& node, const Value* gradient) {
    if (!is_plain_product(node) || found_.dweight != nullptr) return false;
    if (node.attr_int("transA", 0) == 0 || node.attr_int("transB", 0) != 0) return false;
    found_.classes_first = node.input(0) == gradient;
    const Value* other = node.input(found_.classes_first ? 1 : 0);
    if (node.input(found_.classes_first ? 0 : 1) != gradient || !are_rows_of(other, head_.x)) return false;
    found_.dweight = node.output(0);
    return true;
  }

  bool take_dbias(const Node& node, const Value* gradient) {
    if (!is_op(&node, "ReduceSum") || node.input(0) != gradient || head_.bias == nullptr) return false;
    Value* sum = node.output(0);
    const Node* reader = graph_.only_reader(sum);
    if (keeps_one_row(sum) && (is_op(reader, "Squeeze") || is_op(reader, "Reshape"))) sum = reader->output(0);
    if (found_.dbias != nullptr || !sum->type.shape || *sum->type.shape != *head_.bias->type.shape) return false;
    found_.dbias = sum;
    return true;
  }

  bool keeps_one_row(const Value* sum) const {
    if (!sum->type.shape || sum->type.shape->size() < 2 || !sum->type.shape->back().is(head_.classes)) return false;
    return std::all_of(sum->type.shape->begin(), sum->type.shape->end() - 1, [](const Dim& d) { return d.is(1); });
  }

  const Graph& graph_;
  const Head& head_;
  HeadGradient found_;
};

}  // namespace

std::optional<HeadGradient> match_head_gradient(const Graph& graph, const Head& head) {
  return Matcher(graph, head).run();
}

}  // namespace backpass
