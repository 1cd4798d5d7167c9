// ai.onnx.ml TreeEnsemble: scores of rows by decision trees.
#include <algorithm>
#include <cmath>
#include <memory>

#include "graph/op.hpp"
#include "ops/machine_learning/trees.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum class Transform : std::uint8_t { none, softmax, logistic, softmax_zero, probit };

const Tensor& required_tensor(const Node& node, std::string_view key) {
  const Tensor* t = node.attr_tensor(key);
  if (t == nullptr) fail(node.label(), " attribute ", key, " is missing");
  return *t;
}

template <class V>
void require_count(const Node& node, std::string_view key, const V& values, std::size_t count) {
  if (values.size() != count) {
    fail(node.label(), " ", key, ": got ", values.size(), " entries, expected ", count);
  }
}

std::vector<std::int64_t> node_ints(const Node& node, std::string_view key, std::size_t count) {
  std::vector<std::int64_t> values = node.attr_ints(key);
  require_count(node, key, values, count);
  return values;
}

/// A branch as TreeEnsemble::Node holds it. Branches lead forward only, so that no walk can go on for ever.
std::int64_t branch(const Node& node, std::int64_t from, std::int64_t id, bool is_leaf, std::size_t nodes,
                    std::size_t leaves) {
  auto count = static_cast<std::int64_t>(is_leaf ? leaves : nodes);
  if (id < 0 || id >= count) fail(node.label(), " branch of node ", from, ": got ", id, ", expected [0, ", count, ")");
  return is_leaf ? -1 - id : id;
}

/// Sets of BRANCH_MEMBER nodes, in their order, divided by NaN.
void read_members(const Node& node, TreeEnsemble& trees) {
  const Tensor* values = node.attr_tensor("membership_values");
  if (values != nullptr) trees.members = values->to_doubles();
  std::size_t at = 0;
  for (TreeEnsemble::Node& n : trees.nodes) {
    if (n.test != TreeEnsemble::Test::member) continue;
    if (at >= trees.members.size()) fail(node.label(), " membership_values: fewer sets than BRANCH_MEMBER nodes");
    n.members_begin = at;
    while (at < trees.members.size() && !std::isnan(trees.members[at])) ++at;
    n.members_end = at++;
  }
}

void refuse_cycles(const Node& node, const TreeEnsemble& trees) {
  enum class Mark : std::uint8_t { fresh, open, closed };
  std::vector<Mark> marks(trees.nodes.size(), Mark::fresh);
  std::vector<std::int64_t> stack;
  for (std::int64_t root : trees.roots) {
    if (root >= 0) stack.push_back(root);
    while (!stack.empty()) {
      auto at = static_cast<std::size_t>(stack.back());
      if (marks[at] != Mark::fresh) {
        marks[at] = Mark::closed;
        stack.pop_back();
        continue;
      }
      marks[at] = Mark::open;
      for (std::int64_t next : {trees.nodes[at].if_true, trees.nodes[at].if_false}) {
        if (next < 0 || marks[static_cast<std::size_t>(next)] == Mark::closed) continue;
        if (marks[static_cast<std::size_t>(next)] == Mark::open)
          fail(node.label(), " node ", next, " leads back to itself");
        stack.push_back(next);
      }
    }
  }
}

TreeEnsemble read_trees(const Node& node) {
  TreeEnsemble t;
  std::vector<std::int64_t> features = node.attr_ints("nodes_featureids");
  std::size_t n = features.size();
  std::vector<double> splits = required_tensor(node, "nodes_splits").to_doubles();
  std::vector<std::int64_t> modes = required_tensor(node, "nodes_modes").to_ints();
  require_count(node, "nodes_splits", splits, n);
  require_count(node, "nodes_modes", modes, n);
  auto true_ids = node_ints(node, "nodes_truenodeids", n);
  auto false_ids = node_ints(node, "nodes_falsenodeids", n);
  auto true_leafs = node_ints(node, "nodes_trueleafs", n);
  auto false_leafs = node_ints(node, "nodes_falseleafs", n);
  auto missing = node.attr_ints("nodes_missing_value_tracks_true", std::vector<std::int64_t>(n, 0));
  require_count(node, "nodes_missing_value_tracks_true", missing, n);
  std::vector<double> weights = required_tensor(node, "leaf_weights").to_doubles();
  auto leaf_targets = node_ints(node, "leaf_targetids", weights.size());
  t.targets = node.attr_int("n_targets");
  if (t.targets <= 0) fail(node.label(), " n_targets: got ", t.targets, ", expected a positive number");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (leaf_targets[i] < 0 || leaf_targets[i] >= t.targets) {
      fail(node.label(), " leaf_targetids: got ", leaf_targets[i], ", expected [0, ", t.targets, ")");
    }
    t.leaves.push_back({leaf_targets[i], weights[i]});
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (modes[i] < 0 || modes[i] > 6) fail(node.label(), " nodes_modes: got ", modes[i], ", expected 0 to 6");
    if (features[i] < 0) fail(node.label(), " nodes_featureids: got ", features[i], ", expected no negative number");
    auto at = static_cast<std::int64_t>(i);
    t.nodes.push_back({features[i], branch(node, at, true_ids[i], true_leafs[i] != 0, n, weights.size()),
                       branch(node, at, false_ids[i], false_leafs[i] != 0, n, weights.size()), splits[i], 0, 0,
                       static_cast<TreeEnsemble::Test>(modes[i]), missing[i] != 0});
  }
  for (std::int64_t root : node.attr_ints("tree_roots")) {
    t.roots.push_back(branch(node, root, root, false, n, weights.size()));
  }
  std::int64_t aggregate = node.attr_int("aggregate_function", 1);
  if (aggregate < 0 || aggregate > 3) fail(node.label(), " aggregate_function: got ", aggregate, ", expected 0 to 3");
  t.aggregate = static_cast<TreeEnsemble::Aggregate>(aggregate);
  read_members(node, t);
  refuse_cycles(node, t);
  return t;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  std::int64_t transform = c.node.attr_int("post_transform", 0);
  c.require(transform >= 0 && transform <= 4, "post_transform: got ", transform, ", expected 0 to 4");
  c.require(c.rank(0) == 2, "input: got rank ", c.rank(0), ", expected [rows, features]");
  c.set_shape(0, {c.shape(0)[0], c.node.attr_int("n_targets")});
}

/// softmax over the scores; softmax_zero leaves scores of 0 out.
void softmax_scores(double* scores, std::int64_t n, bool keep_zero) {
  double largest = *std::max_element(scores, scores + n);
  double sum = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    if (keep_zero && scores[k] == 0) continue;
    sum += scores[k] = std::exp(scores[k] - largest);
  }
  for (std::int64_t k = 0; k < n; ++k) scores[k] = sum == 0 ? 0 : scores[k] / sum;
}

/// Inverse of the error function by Winitzki's approximation, as ONNX Runtime computes PROBIT.
double probit(double p) {
  double x = 2 * p - 1;
  double log_term = std::log((1 - x) * (1 + x));
  double v = 2 / (3.14159F * 0.147F) + 0.5 * log_term;
  double root = std::sqrt(std::sqrt(v * v - log_term / 0.147F) - v);
  return std::sqrt(2.0) * (x < 0 ? -root : root);
}

void transform_scores(Transform transform, double* scores, std::int64_t n) {
  switch (transform) {
    case Transform::none:
      return;
    case Transform::softmax:
      return softmax_scores(scores, n, false);
    case Transform::softmax_zero:
      return softmax_scores(scores, n, true);
    case Transform::logistic:
      std::transform(scores, scores + n, scores, [](double v) { return 1 / (1 + std::exp(-v)); });
      return;
    case Transform::probit:
      std::transform(scores, scores + n, scores, probit);
  }
}

Kernel prepare(PrepareContext& c) {
  auto trees = std::make_shared<const TreeEnsemble>(read_trees(c.node));
  DType dtype = c.in(0).dtype;
  std::int64_t rows = c.in(0).dims[0];
  std::int64_t features = c.in(0).dims[1];
  for (const TreeEnsemble::Node& n : trees->nodes) {
    c.require(n.feature < features, "nodes_featureids: got ", n.feature, ", expected less than ", features,
              " features");
  }
  auto transform = static_cast<Transform>(c.node.attr_int("post_transform", 0));
  return [=](const KernelArgs& a) {
    constexpr std::int64_t kTypicalDepth = 16;
    visit_real(dtype, [&]<class T>() {
      std::int64_t work = static_cast<std::int64_t>(trees->roots.size()) * kTypicalDepth;
      parallel_for(rows, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> scores(static_cast<std::size_t>(trees->targets));
        for (std::int64_t row = begin; row < end; ++row) {
          trees->score(a.in<T>(0) + row * features, scores.data());
          transform_scores(transform, scores.data(), trees->targets);
          std::transform(scores.begin(), scores.end(), a.out<T>(0) + row * trees->targets,
                         [](double v) { return static_cast<T>(v); });
        }
      });
    });
  };
}

const Register kOp({.name = "TreeEnsemble",
                    .domain = "ai.onnx.ml",
                    .since = 5,
                    .doc = "scores of rows by decision trees",
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .half_through_float = true});

}  // namespace
}  // namespace backpass
