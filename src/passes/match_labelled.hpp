// The part of a graph that makes a loss of scores, row by row, and that does not depend on rows whose label is ignored.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.hpp"
#include "passes/labels.hpp"

namespace backpass {

struct LabelledPart {
  Labels labels;
  Node* first = nullptr;     ///< reads the scores
  Value* scores = nullptr;   ///< [rows..., classes]
  Node* turned = nullptr;    ///< may be null; what moves classes to axis 1 for `first`
  Node* widened = nullptr;   ///< may be null; a Cast behind that
  std::vector<Node*> nodes;  ///< in the order of the graph; nobody else reads what they compute, but for `results`

  /// What nodes read beside that, one for each row, by the number of the input.
  std::vector<std::pair<Node*, std::size_t>> beside;
  /// One number per row, 0 where the label is ignored, which others read. By axis: whether it is one of rows.
  std::map<Value*, std::vector<bool>> results;
  std::vector<Node*> sums;  ///< over all rows

  /// Losses and log probabilities alone, for which rows may lie in one axis.
  bool is_plain() const;
};

struct LabelledMatch {
  std::optional<LabelledPart> part;
  std::string why_not;  ///< empty where the node is no loss that ignores labels
};

bool is_label_loss(const Node& node);
/// By attribute or input; nullopt where nothing is ignored, or it is not known what.
std::optional<std::int64_t> ignored_by(const Node& loss);

/// The part that begins with this node, whose first input has its classes along this axis (follow_rows.cpp).
LabelledMatch follow_rows(const Graph& graph, Node& first, const Labels& labels, std::size_t class_axis);

/// The part whose loss this node is: a loss operator, or log probabilities from which others make one.
LabelledMatch match_labelled(const Graph& graph, Node& node);

}  // namespace backpass
