// Labels of a loss, and what follows from them alone.
#pragma once

#include <optional>
#include <string>

#include "graph/graph.hpp"

namespace backpass {

struct Labels {
  Value* value = nullptr;
  std::int64_t ignore_index = 0;

  /// The labels themselves, perhaps with axes of extent 1 or in another type.
  bool are(const Value* v) const;
  /// What a condition is wherever the label is ignored, if only labels decide that.
  std::optional<bool> at_ignored(const Value* condition) const;
  /// Made of the label of its row alone: by numbers, and by tables with one entry per class.
  bool decide(const Value* v) const;
  /// Decided by labels, and 0 wherever they are ignored.
  bool silence(const Value* v) const;
};

/// The labels that a condition compares with a number, at any depth.
std::optional<Labels> labels_in(const Value* condition);

/// Why it cannot be told from a batch which labels count, before the step runs; empty: it can.
std::string why_not_fed(const Graph& graph, const Value* labels);

/// One number that is known before running.
std::optional<double> known_number(const Value* v);

}  // namespace backpass
