#include "passes/match_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/op.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using namespace pattern;

bool is_last_axis(std::int64_t axis, const Value* v) {
  return axis == -1 || axis + 1 == static_cast<std::int64_t>(rank_of(v));
}

/// The number, if its softmax is 0 beside any score that is worth the name.
std::optional<double> lowest_of(const Value* v) {
  const std::optional<double> number = number_of(v);
  constexpr double kLowest = -1e30;
  return number && *number <= kLowest ? number : std::nullopt;
}

/// A score that is chosen by a boolean mask, and the mask.
struct Choice {
  Value* of;
  WrittenMask mask;
};

std::optional<Choice> choice_of(const Node* node) {
  if (!is_op(node, "Where")) return std::nullopt;
  using Kind = WrittenMask::Kind;
  if (const auto lowest = lowest_of(node->input(2)))
    return Choice{node->input(1), {node->input(0), Kind::seen, *lowest}};
  if (const auto lowest = lowest_of(node->input(1)))
    return Choice{node->input(2), {node->input(0), Kind::hidden, *lowest}};
  return std::nullopt;
}

/// Whether scores may be behind this value; `sums` is how many additions may stand between.
bool leads_to_product(const Value* v, int sums) {
  while (v->producer != nullptr) {
    const std::optional<Factor> factor = factor_of(v->producer);
    const std::optional<Choice> choice = choice_of(v->producer);
    if (!factor && !choice && !is_identity(v->producer)) break;
    v = factor ? factor->of : choice ? choice->of : v->producer->input(0);
  }
  if (is_op(v->producer, "MatMul")) return true;
  return sums > 0 && is_op(v->producer, "Add") &&
         (leads_to_product(v->producer->input(0), sums - 1) || leads_to_product(v->producer->input(1), sums - 1));
}

constexpr int kMostSums = 2;

/// The operand of a sum that scores are in; the other one is added to them.
std::optional<std::size_t> operand_with_product(const Node& sum) {
  for (int between = 0; between < kMostSums; ++between) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (leads_to_product(sum.input(i), between)) return i;
    }
  }
  return std::nullopt;
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
    Value* scores = before_softmax(before_dropout(skip(found_.result->input(0))));
    if (scores == nullptr || !take_masks_and_product(scores)) return std::nullopt;
    decide_unseen();
    if (is_put_to_zero_by_mask() && found_.masks.size() > 1) return std::nullopt;  // others hide keys from it
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

  Value* before_dropout(Value* dropped) {
    if (!is_op(dropped->producer, "Dropout")) return dropped;
    Node* node = take(dropped->producer);
    if (node->input(2) != nullptr) found_.dropout = node;  // else it never drops
    return skip(node->input(0));
  }

  /// Masked scores from probabilities; null when they are made in another way.
  Value* before_softmax(Value* probabilities) {
    Node* outer = probabilities->producer;
    if (!is_op(outer, "Where")) return take_softmax(probabilities);
    take(outer);
    const bool chooses = number_of(outer->input(2)) == 0;
    if (!chooses && number_of(outer->input(1)) != 0) return nullptr;
    Value* kept = skip(outer->input(chooses ? 1 : 2));
    Value* x = take_softmax(kept);
    if (x == nullptr || (!chooses && is_no_number(outer->input(0), kept))) return x;
    Node* inner = x->producer;
    if (!is_op(inner, "Where") || inner->input(0) != outer->input(0)) return nullptr;
    found_.flag = outer->input(0);
    const std::optional<Choice> choice = choice_of(inner);
    if (choice) return (choice->mask.kind == WrittenMask::Kind::seen) == chooses ? x : nullptr;
    take(inner);
    return !chooses && is_unseen(inner->input(0), inner->input(2)) ? inner->input(2) : nullptr;
  }

  /// Whether `flag` says where these probabilities are no numbers.
  bool is_no_number(Value* flag, const Value* probabilities) {
    if (!is_op(flag->producer, "IsNaN") || skip(flag->producer->input(0)) != probabilities) return false;
    found_.flag = take(flag->producer)->output(0);
    return true;
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

  bool take_masks_and_product(Value* masked) {
    masked = skip(masked);
    while (Value* scores = before_mask(masked->producer)) masked = skip(scores);
    std::reverse(found_.masks.begin(), found_.masks.end());
    return take_product(masked);
  }

  Value* before_mask(Node* node) {
    if (const std::optional<Choice> choice = choice_of(node)) {
      take(node);
      found_.masks.push_back(choice->mask);
      return choice->of;
    }
    const std::optional<std::size_t> scores = is_op(node, "Add") ? operand_with_product(*node) : std::nullopt;
    if (!scores) return nullptr;
    take(node);
    found_.masks.push_back({node->input(1 - *scores), WrittenMask::Kind::added});
    return node->input(*scores);
  }

  bool is_put_to_zero_by_mask() const {
    return std::any_of(found_.masks.begin(), found_.masks.end(),
                       [&](const WrittenMask& mask) { return mask.value == found_.flag; });
  }

  void decide_unseen() {
    const auto& masks = found_.masks;
    auto is_finite = [&](const WrittenMask& m) {
      return m.kind != WrittenMask::Kind::added && m.lowest == masks.front().lowest && std::isfinite(m.lowest);
    };
    if (!is_put_to_zero_by_mask() && !masks.empty() && std::all_of(masks.begin(), masks.end(), is_finite)) {
      found_.unseen = Unseen::all;
    } else if (found_.flag != nullptr) {
      found_.unseen = Unseen::zero;
    }
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
    Shape scores(q.begin(), q.end() - 1);
    scores.push_back(keys[last]);
    return std::all_of(found_.masks.begin(), found_.masks.end(), [&](const WrittenMask& mask) {
      const DType wanted = mask.kind == WrittenMask::Kind::added ? dtype : DType::boolean;
      return mask.value->type.dtype == wanted && masks(mask.value, scores);
    });
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

std::optional<WrittenMask> boolean_mask(const WrittenMask& added) {
  const std::optional<Choice> choice = choice_of(added.value->producer);
  if (added.kind != WrittenMask::Kind::added || !choice || number_of(choice->of) != 0) return std::nullopt;
  const Value* boolean = choice->mask.value;
  return boolean->type.shape == added.value->type.shape ? std::optional(choice->mask) : std::nullopt;
}

bool has_learned_mask(const Graph& graph, const std::vector<WrittenMask>& masks) {
  std::unordered_set<const Value*> seen;
  std::vector<const Value*> todo;
  todo.reserve(masks.size());
  for (const WrittenMask& mask : masks) todo.push_back(mask.value);
  while (!todo.empty()) {
    const Value* v = todo.back();
    todo.pop_back();
    if (v == nullptr || !is_float(v->type.dtype) || !seen.insert(v).second) continue;
    const auto& steady = graph.steady_inputs;
    if (std::find(steady.begin(), steady.end(), v) != steady.end()) return true;
    if (v->producer != nullptr) for_each_read(*v->producer, [&](const Value* read) { todo.push_back(read); });
  }
  return false;
}

Value* joined_mask(Builder& b, const WrittenAttention& attention) {
  using Kind = WrittenMask::Kind;
  const auto& masks = attention.masks;
  if (masks.empty()) return nullptr;
  const bool is_boolean = std::all_of(masks.begin(), masks.end(), [&](const WrittenMask& mask) {
    return mask.kind != Kind::added && mask.lowest == masks.front().lowest;
  });
  Value* joined = nullptr;
  for (const WrittenMask& mask : masks) {
    if (is_boolean) {
      Value* seen = mask.kind == Kind::seen ? mask.value : b.op("Not", {mask.value});
      joined = joined == nullptr ? seen : b.op("And", {joined, seen});
    } else if (mask.kind == Kind::added) {
      joined = joined == nullptr ? mask.value : b.op("Add", {joined, mask.value});
    } else {
      Value* rest = joined == nullptr ? b.scalar(0, attention.q) : joined;
      Value* lowest = b.scalar(mask.lowest, attention.q);
      const bool chooses = mask.kind == Kind::seen;
      joined = b.op("Where", {mask.value, chooses ? rest : lowest, chooses ? lowest : rest});
    }
  }
  return joined;
}

void take_factors(WrittenAttention& attention) {
  for (Value** operand : {&attention.q, &attention.keys}) {
    while (const std::optional<Factor> factor = factor_of((*operand)->producer)) {
      attention.scale *= factor->number;
      *operand = factor->of;
    }
  }
}

}  // namespace backpass
