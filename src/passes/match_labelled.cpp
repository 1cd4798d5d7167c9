#include "passes/match_labelled.hpp"

#include <algorithm>

#include "graph/op.hpp"
#include "passes/pattern.hpp"
#include "passes/row_axes.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::is_op;
using pattern::rank_of;

bool is_nll(const Node& node) { return node.op.starts_with("NegativeLogLikelihoodLoss"); }

bool goes_by_rows(const Node& node) {
  return node.def != nullptr && node.domain.empty() &&
         (node.def->tile != nullptr || node.op == "LogSoftmax" || node.op.starts_with("Reduce") ||
          node.op == "GatherElements" || node.op.ends_with("queeze") || node.op == "Transpose");
}

/// What compares labels with a number to silence something that was made of `from`.
std::optional<Labels> labels_behind(const Value* from) {
  constexpr std::size_t kFar = 64;
  std::vector<const Value*> made{from};
  for (std::size_t i = 0; i < std::min(made.size(), kFar); ++i) {
    for (const Node* node : made[i]->readers) {
      if (!goes_by_rows(*node)) continue;
      if (is_op(node, "Where") && node->input(0) != made[i]) {
        if (auto labels = labels_in(node->input(0))) return labels;
      }
      const Value* next = node->output(0);
      if (next != nullptr && std::find(made.begin(), made.end(), next) == made.end()) made.push_back(next);
    }
  }
  return std::nullopt;
}

/// Along which axis a node makes log probabilities, or begins to.
std::optional<std::size_t> class_axis_of(const Graph& graph, const Node& node) {
  const std::size_t rank = rank_of(node.input(0));
  if (rank < 2) return std::nullopt;
  const std::size_t axis = axis_from_front(node.attr_int("axis", -1), rank);
  if (is_op(&node, "LogSoftmax")) return axis;
  if (is_op(&node, "Softmax") && is_op(graph.only_reader(node.output(0)), "Log")) return axis;
  const Node* reader = is_op(&node, "ReduceMax") ? graph.only_reader(node.output(0)) : nullptr;
  if (!is_op(reader, "Sub") || reader->input(0) != node.input(0)) return std::nullopt;
  const auto axes = named_axes(node.input(1), rank);
  return axes && axes->size() == 1 ? std::optional(axes->front()) : std::nullopt;
}

/// With as many axes as rows have.
bool take_off_axes(Labels& labels, std::size_t rank) {
  while (rank_of(labels.value) > rank && is_op(labels.value->producer, "Unsqueeze")) {
    labels.value = labels.value->producer->input(0);
  }
  return rank_of(labels.value) == rank;
}

/// A loss that is written out.
LabelledMatch match_written_out(const Graph& graph, Node& first) {
  const auto axis = class_axis_of(graph, first);
  if (!axis) return {};
  for (const Node* reader : first.output(0)->readers) {
    if (is_label_loss(*reader)) return {};
  }
  auto labels = labels_behind(first.output(0));
  if (!labels) return {};
  Shape rows = *first.input(0)->type.shape;
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(*axis));
  if (!take_off_axes(*labels, rows.size()) || *labels->value->type.shape != rows) {
    return {{}, "the labels '" + labels->value->name + "' have other extents than the rows"};
  }
  const std::string why_not = why_not_fed(graph, labels->value);
  return why_not.empty() ? follow_rows(graph, first, *labels, *axis) : LabelledMatch{{}, why_not};
}

/// Where log probabilities are made, along axis 1.
Node* log_softmax_before(const Graph& graph, const Node& nll) {
  Node* made = nll.input(0)->producer;
  if (is_op(made, "Log")) made = made->input(0)->producer;
  return made != nullptr && class_axis_of(graph, *made) == 1U ? made : nullptr;
}

/// Labels of rows that were chosen by them.
bool is_chosen(const Value* labels) {
  const Node* gather = labels->producer;
  const Node* rows = is_op(gather, "Gather") ? gather->input(1)->producer : nullptr;
  return rows != nullptr && rows->domain == "backpass" && rows->op == "LabelledRows";
}

std::string why_needed(const Graph& graph, const Value& log_prob) {
  const std::string what = "the log probabilities '" + log_prob.name + "' are ";
  return what + (graph.is_output(&log_prob) ? "a result" : "read by " + log_prob.readers.front()->label());
}

LabelledMatch match_loss(const Graph& graph, Node& loss) {
  if (rank_of(loss.input(0)) < 2 || rank_of(loss.input(1)) == 0) return {};
  if (is_chosen(loss.input(1))) return {};
  const auto ignored = ignored_by(loss);
  if (!ignored && loss.input(3) != nullptr) return {{}, "ignore_index is not known before running"};
  if (!ignored) return {};
  if (graph.use_count(loss.output(1)) != 0) return {{}, why_needed(graph, *loss.output(1))};
  const Labels labels{loss.input(1), *ignored};
  const std::string why_not = why_not_fed(graph, labels.value);
  if (!why_not.empty()) return {{}, why_not};
  Node* before = is_nll(loss) ? log_softmax_before(graph, loss) : nullptr;
  if (is_nll(loss) && loss.input(0)->producer == nullptr) return {{}, "the log probabilities are fed"};
  return follow_rows(graph, before == nullptr ? loss : *before, labels, 1);
}

}  // namespace

bool is_label_loss(const Node& node) {
  const bool is_standard = node.op == "SoftmaxCrossEntropyLoss" || node.op == "NegativeLogLikelihoodLoss";
  if (node.domain.empty()) return is_standard;
  const bool is_internal =
      node.op == "SoftmaxCrossEntropyLossInternal" || node.op.starts_with("NegativeLogLikelihoodLossInternal");
  return node.domain == "com.microsoft" && is_internal;
}

std::optional<std::int64_t> ignored_by(const Node& loss) {
  if (loss.input(3) != nullptr) {
    const auto number = known_number(loss.input(3));
    return number ? std::optional(static_cast<std::int64_t>(*number)) : std::nullopt;
  }
  if (!loss.has_attribute("ignore_index")) return std::nullopt;
  return loss.attr_int("ignore_index", 0);
}

LabelledMatch match_labelled(const Graph& graph, Node& node) {
  return is_label_loss(node) ? match_loss(graph, node) : match_written_out(graph, node);
}

}  // namespace backpass
