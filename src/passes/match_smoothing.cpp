#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/match_head.hpp"
#include "passes/pattern.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using pattern::is_op;

std::optional<double> number(const Value* v) {
  if (v == nullptr) return std::nullopt;
  if (is_op(v->producer, "Div")) {
    const auto a = number(v->producer->input(0));
    const auto b = number(v->producer->input(1));
    return a && b ? std::optional<double>(*a / *b) : std::nullopt;
  }
  if (!v->constant || v->constant->size() != 1) return std::nullopt;
  std::optional<double> found;
  const DType dtype = v->constant->dtype();
  if (is_float(dtype)) {
    visit_float(dtype, [&]<class T>() { found = static_cast<double>(static_cast<float>(*v->constant->as<T>())); });
    if (dtype == DType::float64) found = *v->constant->as<double>();
  } else if (dtype == DType::int64) {
    found = static_cast<double>(*v->constant->as<std::int64_t>());
  } else if (dtype == DType::int32) {
    found = static_cast<double>(*v->constant->as<std::int32_t>());
  }
  return found;
}

bool is_number(const Value* v, double wanted) { return number(v) == wanted; }

/// A sum over these axes; none: over all.
bool is_sum(const Node* node, const std::vector<std::int64_t>& axes) {
  if (!is_op(node, "ReduceSum") || node->attr_int("keepdims", 1) != 0) return false;
  const Value* given = node->input(1);
  if (given == nullptr) return axes.empty() && node->attr_int("noop_with_empty_axes", 0) == 0;
  if (!given->constant || given->constant->dtype() != DType::int64) return false;
  const auto* from = given->constant->as<std::int64_t>();
  return std::vector<std::int64_t>(from, from + given->constant->size()) == axes;
}

/// The other factor of a product with `v`.
const Value* factor_beside(const Node* node, const Value* v) {
  if (!is_op(node, "Mul") || (node->input(0) != v) == (node->input(1) != v)) return nullptr;
  return node->input(node->input(0) == v ? 1 : 0);
}

class Matcher {
 public:
  Matcher(const Graph& graph, const Node& label_loss, std::int64_t classes)
      : graph_(graph), hard_(label_loss), classes_(static_cast<double>(classes)) {}

  std::optional<SmoothedLoss> run() {
    const Value* soft = part_of_all_classes();
    const Node* sum = soft == nullptr ? nullptr : scaled(soft, share_);
    if (sum == nullptr || sum != scaled(hard_.output(0), kept_) || !is_op(sum, "Add")) return std::nullopt;
    const double smoothing = share_ * classes_;
    const double rounding = hard_.output(0)->type.dtype == DType::bfloat16 || is_half() ? 0.01 : 1e-5;
    if (std::abs(1 - kept_ - smoothing) > rounding || kept_ < 0 || kept_ > 1) return std::nullopt;
    return reduced(sum->output(0), static_cast<float>(1 - kept_));
  }

 private:
  bool is_half() const { return hard_.output(0)->type.dtype == DType::float16; }
  const Value* labels() const { return hard_.input(1); }
  const Value* weights() const { return hard_.input(2); }

  bool is_ignored(const Value* v) const {
    const Node* node = v == nullptr ? nullptr : v->producer;
    if (!is_op(node, "Equal") || !hard_.has_attribute("ignore_index")) return false;
    const auto index = static_cast<double>(hard_.attr_int("ignore_index", 0));
    return (node->input(0) == labels() && is_number(node->input(1), index)) ||
           (node->input(1) == labels() && is_number(node->input(0), index));
  }

  /// -ReduceSum(log w), 0 where the label is ignored.
  const Value* part_of_all_classes() const {
    const Value* log = hard_.input(0);
    const Node* other = nullptr;
    for (const Node* reader : log->readers) {
      if (reader != &hard_) other = reader;
    }
    if (log->readers.size() != 2 || graph_.is_output(log) || other == nullptr) return nullptr;
    if (weights() != nullptr) {
      if (!is_class_weights(factor_beside(other, log))) return nullptr;
      other = graph_.only_reader(other->output(0));
    }
    if (!is_sum(other, {1})) return nullptr;
    const Node* negative = graph_.only_reader(other->output(0));
    const Node* where = is_op(negative, "Neg") ? graph_.only_reader(negative->output(0)) : nullptr;
    const bool fits = is_op(where, "Where") && is_ignored(where->input(0)) && is_number(where->input(1), 0);
    return fits && where->input(2) == negative->output(0) ? where->output(0) : nullptr;
  }

  /// One per class, with axes for the positions behind them.
  bool is_class_weights(const Value* v) const {
    if (v == nullptr || v == weights()) return v != nullptr && hard_.input(0)->type.shape->size() == 2;
    return is_op(v->producer, "Reshape") && v->producer->input(0) == weights() && v->type.shape &&
           v->type.shape->size() + 1 == hard_.input(0)->type.shape->size() && v->type.shape->front().is_known() &&
           static_cast<double>(v->type.shape->front().value()) == classes_;
  }

  /// What reads v times a number.
  const Node* scaled(const Value* v, double& by) const {
    const Node* product = graph_.only_reader(v);
    const std::optional<double> factor = number(factor_beside(product, v));
    if (!factor) return nullptr;
    by = *factor;
    return graph_.only_reader(product->output(0));
  }

  SmoothedLoss reduced(Value* rows, float smoothing) const {
    Node* sum = graph_.only_reader(rows);
    if (!is_sum(sum, {})) return {rows->producer, "none", smoothing};
    Node* mean = graph_.only_reader(sum->output(0));
    const bool is_mean = is_op(mean, "Div") && mean->input(0) == sum->output(0) && is_mass(mean->input(1));
    return is_mean ? SmoothedLoss{mean, "mean", smoothing} : SmoothedLoss{sum, "sum", smoothing};
  }

  /// The weight of all labels that count.
  bool is_mass(const Value* v) const {
    if (v == nullptr || !is_sum(v->producer, {})) return false;
    const Node* where = v->producer->input(0)->producer;
    if (!is_op(where, "Where") || !is_ignored(where->input(0)) || !is_number(where->input(1), 0)) return false;
    if (weights() == nullptr) return is_number(where->input(2), 1);
    const Node* gather = where->input(2)->producer;
    if (!is_op(gather, "Gather") || gather->input(0) != weights() || gather->attr_int("axis", 0) != 0) return false;
    const Node* known = gather->input(1)->producer;
    return is_op(known, "Where") && is_ignored(known->input(0)) && is_number(known->input(1), 0) &&
           known->input(2) == labels();
  }

  const Graph& graph_;
  const Node& hard_;
  double classes_;
  double share_ = 0;
  double kept_ = 0;
};

}  // namespace

std::optional<SmoothedLoss> match_smoothing(const Graph& graph, const Node& label_loss, std::int64_t classes) {
  if (label_loss.attr_string("reduction", "mean") != "none") return std::nullopt;
  return Matcher(graph, label_loss, classes).run();
}

}  // namespace backpass
