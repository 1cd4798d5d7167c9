#include "ops/linear/einsum_rule.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace backpass {
namespace {

using Labels = std::vector<int>;

bool has(const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

bool is_ellipsis(int label) { return label >= kFirstEllipsisLabel; }

/// A term as text. The ellipsis stays one, because its axes may broadcast where a letter stands for one extent.
std::string spelled(const Labels& labels) {
  std::string text;
  bool in_ellipsis = false;
  for (int label : labels) {
    if (!is_ellipsis(label)) {
      text += static_cast<char>(label);
    } else if (!in_ellipsis) {
      text += "...";
    }
    in_ellipsis = is_ellipsis(label);
  }
  return text;
}

/// A product of tensors with labelled axes, scalars kept apart because an empty term is not for every runtime.
struct Factors {
  std::vector<Value*> tensors;
  std::vector<Labels> terms;
  Value* scalar = nullptr;

  void add(GradientContext& g, Value* v, const Labels& labels) {
    if (!labels.empty()) {
      tensors.push_back(v);
      terms.push_back(labels);
    } else {
      scalar = scalar == nullptr ? v : g.mul(scalar, v);
    }
  }
  bool mentions(int label) const {
    return std::any_of(terms.begin(), terms.end(), [&](const Labels& t) { return has(t, label); });
  }
  /// All axes that an ellipsis stands for among the factors.
  Labels ellipsis() const {
    Labels most;
    for (const Labels& term : terms) {
      Labels own;
      std::copy_if(term.begin(), term.end(), std::back_inserter(own), is_ellipsis);
      if (own.size() > most.size()) most = own;
    }
    return most;
  }
  Value* sum_to(GradientContext& g, const Labels& output) const {
    if (tensors.empty()) return scalar;
    Value* result = tensors[0];
    if (tensors.size() > 1 || terms[0] != output) {
      std::string equation;
      for (const Labels& term : terms) equation += (equation.empty() ? "" : ",") + spelled(term);
      result = g.op("Einsum", tensors, {{"equation", equation + "->" + spelled(output)}});
    }
    return scalar == nullptr ? result : g.mul(result, scalar);
  }
};

/// The labels that both the term and the factors have, in the order of the term, but the whole ellipsis of the factors:
/// the standard wants it in the output wherever an operand has one.
Labels common_labels(const Labels& term, const Factors& factors) {
  Labels common;
  for (int label : term) {
    if (!is_ellipsis(label) && factors.mentions(label) && !has(common, label)) common.push_back(label);
  }
  auto dots = std::find_if(term.begin(), term.end(), is_ellipsis);
  std::ptrdiff_t before = 0;  // common letters in front of the ellipsis
  for (int label : common) before += dots != term.end() && std::find(term.begin(), dots, label) != dots ? 1 : 0;
  const Labels ellipsis = factors.ellipsis();
  common.insert(common.begin() + before, ellipsis.begin(), ellipsis.end());
  return common;
}

/// 0, 1, ... along one axis of a value.
Value* index_along(GradientContext& g, Value* x, std::int64_t axis) {
  Value* index = g.op("Range", {g.b.integer(0), g.extent(x, axis), g.b.integer(1)});
  std::vector<std::int64_t> behind;
  for (std::int64_t i = axis + 1; i < g.rank(x); ++i) behind.push_back(i - axis);
  return g.unsqueeze(index, behind);
}

/// `d` has the axes `present` of the operand; the others were summed over (repeat) or repeat a label (diagonal).
Value* to_operand(GradientContext& g, Value* d, Value* x, const Labels& term, const Labels& present) {
  std::vector<std::int64_t> missing;
  for (std::size_t i = 0; i < term.size(); ++i) {
    const bool repeats = has(Labels(term.begin(), term.begin() + static_cast<std::ptrdiff_t>(i)), term[i]);
    if (repeats || !has(present, term[i])) missing.push_back(static_cast<std::int64_t>(i));
  }
  d = g.expand_like(g.unsqueeze(d, missing), x);
  // An extent of 1 in the operand that met a larger one elsewhere was broadcast.
  d = g.reduce_like(d, x);
  for (std::size_t i = 0; i < term.size(); ++i) {
    auto first = std::find(term.begin(), term.end(), term[i]) - term.begin();
    if (first == static_cast<std::ptrdiff_t>(i)) continue;
    Value* on_diagonal = g.equal(index_along(g, x, first), index_along(g, x, static_cast<std::int64_t>(i)));
    d = g.where(on_diagonal, d, g.zero(d));
  }
  return d;
}

}  // namespace

void einsum_gradient(GradientContext& g, const EinsumLabels& labels) {
  for (std::size_t i = 0; i < labels.terms.size(); ++i) {
    if (!g.wants(i)) continue;
    const Labels& term = labels.terms[i];
    Factors factors;
    factors.add(g, g.dy(), labels.output);
    for (std::size_t j = 0; j < labels.terms.size(); ++j) {
      if (j != i) factors.add(g, g.x(j), labels.terms[j]);
    }
    Labels present = common_labels(term, factors);
    Value* d = factors.sum_to(g, present);
    std::vector<std::int64_t> foreign;  // axes of the ellipsis that this operand does not have
    for (std::size_t k = 0; k < present.size(); ++k) {
      if (!has(term, present[k])) foreign.push_back(static_cast<std::int64_t>(k));
    }
    d = g.sum(d, std::move(foreign), false);
    std::erase_if(present, [&](int label) { return !has(term, label); });
    g.set(i, to_operand(g, d, g.x(i), term, present));
  }
}

}  // namespace backpass
