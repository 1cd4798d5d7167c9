#include "passes/match_attention.hpp"

#include <algorithm>
#include <limits>

#include "graph/op.hpp"
#include "ops/read_scalar.hpp"

namespace backpass {
namespace {

bool is_op(const Node* node, std::string_view op) { return node != nullptr && node->domain.empty() && node->op == op; }

std::size_t rank_of(const Value* v) {
  return v != nullptr && v->type.is_tensor() && v->type.shape ? v->type.shape->size() : 0;
}

/// The one number that a constant holds.
std::optional<double> number_of(const Value* v) {
  if (v == nullptr || !v->constant || v->constant->size() != 1 || v->constant->dtype() == DType::string)
    return std::nullopt;
  return read_scalar(v->constant->dtype(), v->constant->data());
}

bool is_last_axis(std::int64_t axis, const Value* v) {
  return axis == -1 || axis + 1 == static_cast<std::int64_t>(rank_of(v));
}

/// Its softmax is 0 beside any score that is a number worth the name.
bool is_lowest(const Value* v) {
  const std::optional<double> number = number_of(v);
  const double least = v->type.dtype == DType::float64 ? std::numeric_limits<double>::lowest()
                                                       : static_cast<double>(std::numeric_limits<float>::lowest());
  return number && *number <= least;
}

bool is_identity(const Node* node) {
  if (is_op(node, "Cast")) return node->input(0)->type.dtype == node->output(0)->type.dtype;
  return is_op(node, "Identity");
}

/// Beside a shape, each of its extents is 1 or the same; of the last one always the same.
bool masks(const Value* mask, const Shape& scores) {
  const std::size_t rank = rank_of(mask);
  if (rank == 0 || rank > scores.size() || mask->type.shape->back() != scores.back()) return false;
  for (std::size_t i = 1; i < rank; ++i) {
    const Dim& extent = (*mask->type.shape)[rank - 1 - i];
    if (!extent.is(1) && extent != scores[scores.size() - 1 - i]) return false;
  }
  return true;
}

class Matcher {
 public:
  explicit Matcher(Node& result) { found_.result = &result; }

  std::optional<WrittenAttention> run() {
    if (!is_op(found_.result, "MatMul")) return std::nullopt;
    take(found_.result);
    found_.v = found_.result->input(1);
    Value* dropped = skip(found_.result->input(0));
    if (!is_op(dropped->producer, "Dropout") || dropped->producer->input(2) == nullptr) return std::nullopt;
    found_.dropout = take(dropped->producer);
    Value* scores = before_softmax(skip(found_.dropout->input(0)));
    if (scores == nullptr || !take_mask_and_product(scores)) return std::nullopt;
    return fits() ? std::optional(found_) : std::nullopt;
  }

 private:
  Node* take(Node* node) {
    found_.nodes.insert(node);
    return node;
  }

  Value* skip(Value* v) {
    while (is_identity(v->producer)) v = take(v->producer)->input(0);
    return v;
  }

  /// Masked scores from probabilities; null when they are made in another way.
  Value* before_softmax(Value* probabilities) {
    Node* outer = probabilities->producer;
    if (!is_op(outer, "Where")) {
      found_.unseen_is_nan = true;
      return take_softmax(probabilities);
    }
    take(outer);
    const bool chooses = number_of(outer->input(2)) == 0;
    if (!chooses && number_of(outer->input(1)) != 0) return nullptr;
    Value* x = take_softmax(skip(outer->input(chooses ? 1 : 2)));
    Node* inner = x == nullptr ? nullptr : x->producer;
    if (!is_op(inner, "Where") || inner->input(0) != outer->input(0)) return nullptr;
    take(inner);
    found_.flag = inner->input(0);
    if (!chooses) return is_unseen(inner->input(0), inner->input(2)) ? inner->input(2) : nullptr;
    found_.mask = found_.flag;
    return is_lowest(inner->input(2)) ? inner->input(1) : nullptr;
  }

  Value* take_softmax(Value* probabilities) {
    Node* node = probabilities->producer;
    if (!is_op(node, "Softmax") || !is_last_axis(node->attr_int("axis", -1), probabilities)) return nullptr;
    found_.softmax = take(node);
    return skip(node->input(0));
  }

  /// Whether `flag` says which rows of scores are minus infinity all over; they are then put to zero.
  bool is_unseen(Value* flag, const Value* scores) {
    Node* equal = flag->producer;
    const std::optional<double> nothing = is_op(equal, "Equal") ? number_of(equal->input(1)) : std::nullopt;
    if (nothing != -std::numeric_limits<double>::infinity()) return false;
    Node* largest = take(equal)->input(0)->producer;
    if (!is_op(largest, "ReduceMax") || largest->attr_int("keepdims", 1) != 1) return false;
    const std::optional<double> axis = number_of(take(largest)->input(1));
    return axis && is_last_axis(static_cast<std::int64_t>(*axis), scores) && before_stop(largest->input(0)) == scores;
  }

  Value* before_stop(Value* v) {
    const bool stops = v->producer != nullptr && v->producer->op == "StopGradient" && v->producer->domain == "backpass";
    return stops ? take(v->producer)->input(0) : skip(v);
  }

  bool take_mask_and_product(Value* masked) {
    masked = skip(masked);
    if (!is_op(masked->producer, "Add")) return take_product(masked);
    if (found_.mask != nullptr) return false;
    const Node* sum = take(masked->producer);
    const std::size_t scores = leads_to_product(sum->input(0)) ? 0 : 1;
    found_.mask = sum->input(1 - scores);
    return leads_to_product(sum->input(scores)) && take_product(sum->input(scores));
  }

  static bool leads_to_product(const Value* v) {
    while (v->producer != nullptr) {
      const std::optional<Factor> factor = factor_of(v->producer);
      if (!factor && !is_identity(v->producer)) break;
      v = factor ? factor->of : v->producer->input(0);
    }
    return is_op(v->producer, "MatMul");
  }

  bool take_product(Value* v) {
    v = skip(v);
    while (const std::optional<Factor> factor = factor_of(v->producer)) {
      found_.scale *= factor->number;
      take(v->producer);
      v = skip(factor->of);
    }
    if (!is_op(v->producer, "MatMul")) return false;
    found_.scores = take(v->producer);
    found_.q = found_.scores->input(0), found_.keys = found_.scores->input(1);
    return true;
  }

  bool fits() const {
    const DType dtype = found_.q->type.dtype;
    const std::size_t rank = rank_of(found_.q);
    if (!types::reals.has(dtype) || (rank != 3 && rank != 4) || rank_of(found_.result->output(0)) != rank) return false;
    for (const Value* v : {found_.keys, found_.v}) {
      if (v->type.dtype != dtype || rank_of(v) != rank) return false;
    }
    const Shape &q = *found_.q->type.shape, &keys = *found_.keys->type.shape, &v = *found_.v->type.shape;
    const std::size_t last = rank - 1;
    const auto heads = static_cast<std::ptrdiff_t>(rank) - 2;
    if (!std::equal(q.begin(), q.begin() + heads, keys.begin()) || !std::equal(q.begin(), q.begin() + heads, v.begin()))
      return false;
    if (q[last] != keys[last - 1] || keys[last] != v[last - 1]) return false;
    if (found_.mask == nullptr) return true;
    const DType mask = found_.mask->type.dtype;
    Shape scores(q.begin(), q.end() - 1);
    scores.push_back(keys[last]);
    return (mask == DType::boolean || mask == dtype) && masks(found_.mask, scores);
  }

  WrittenAttention found_;
};

}  // namespace

std::optional<Factor> factor_of(const Node* node) {
  const bool divides = is_op(node, "Div");
  if (!divides && !is_op(node, "Mul")) return std::nullopt;
  for (std::size_t i = divides ? 1 : 0; i < 2; ++i) {
    const std::optional<double> number = number_of(node->input(i));
    Value* other = node->input(1 - i);
    if (number && rank_of(other) > 0 && rank_of(node->input(i)) <= rank_of(other))
      return Factor{other, divides ? 1 / *number : *number};
  }
  return std::nullopt;
}

std::optional<WrittenAttention> match_attention(Node& result) { return Matcher(result).run(); }

void take_factors(WrittenAttention& attention) {
  for (Value** operand : {&attention.q, &attention.keys}) {
    while (const std::optional<Factor> factor = factor_of((*operand)->producer)) {
      attention.scale *= factor->number;
      *operand = factor->of;
    }
  }
}

}  // namespace backpass
