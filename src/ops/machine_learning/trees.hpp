// Ensembles of decision trees.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace backpass {

struct TreeEnsemble {
  enum class Test : std::uint8_t { less_equal, less, greater_equal, greater, equal, not_equal, member };
  enum class Aggregate : std::uint8_t { average, sum, minimum, maximum };

  /// Branches: an index into `nodes`, or -1 - an index into `leaves`.
  struct Node {
    std::int64_t feature;
    std::int64_t if_true;
    std::int64_t if_false;
    double split;
    std::size_t members_begin, members_end;  ///< into `members`, for Test::member
    Test test;
    bool nan_is_true;
  };
  struct Leaf {
    std::int64_t target;
    double weight;
  };

  std::vector<Node> nodes;
  std::vector<Leaf> leaves;
  std::vector<std::int64_t> roots;  ///< branches
  std::vector<double> members;
  std::int64_t targets = 0;
  Aggregate aggregate = Aggregate::sum;

  /// Scores of one row of features; `scores` has `targets` elements.
  template <class T>
  void score(const T* x, double* scores) const;

 private:
  bool passes(const Node& node, double value) const {
    if (std::isnan(value) && node.nan_is_true) return true;
    switch (node.test) {
      case Test::less_equal:
        return value <= node.split;
      case Test::less:
        return value < node.split;
      case Test::greater_equal:
        return value >= node.split;
      case Test::greater:
        return value > node.split;
      case Test::equal:
        return value == node.split;
      case Test::not_equal:
        return value != node.split;
      case Test::member:
        for (std::size_t i = node.members_begin; i < node.members_end; ++i) {
          if (members[i] == value) return true;
        }
    }
    return false;
  }
};

template <class T>
void TreeEnsemble::score(const T* x, double* scores) const {
  std::vector<bool> seen(static_cast<std::size_t>(targets), false);
  for (std::int64_t k = 0; k < targets; ++k) scores[k] = 0;
  for (std::int64_t at : roots) {
    while (at >= 0) {
      const Node& node = nodes[static_cast<std::size_t>(at)];
      at = passes(node, static_cast<double>(x[node.feature])) ? node.if_true : node.if_false;
    }
    const Leaf& leaf = leaves[static_cast<std::size_t>(-1 - at)];
    double& score = scores[leaf.target];
    bool first = !seen[static_cast<std::size_t>(leaf.target)];
    seen[static_cast<std::size_t>(leaf.target)] = true;
    switch (aggregate) {
      case Aggregate::sum:
        score += leaf.weight;
        break;
      case Aggregate::average:
        score += leaf.weight / static_cast<double>(roots.size());
        break;
      case Aggregate::minimum:
        score = first ? leaf.weight : std::fmin(score, leaf.weight);
        break;
      case Aggregate::maximum:
        score = first ? leaf.weight : std::fmax(score, leaf.weight);
        break;
    }
  }
}

}  // namespace backpass
