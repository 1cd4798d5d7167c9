#include "ops/losses/label_loss.hpp"

#include <limits>

#include "ops/shape_rules.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {

LossReduction loss_reduction(const Node& node) {
  std::string text = node.attr_string("reduction", "mean");
  if (text == "none") return LossReduction::none;
  if (text == "sum") return LossReduction::sum;
  if (text == "mean") return LossReduction::mean;
  fail(node.label(), " reduction: got ", printable(text), ", expected 'none', 'sum' or 'mean'");
}

std::optional<std::int64_t> ignore_attribute(const Node& node) {
  if (!node.has_attribute("ignore_index")) return std::nullopt;
  return node.attr_int("ignore_index", 0);
}

void infer_label_loss(InferContext& c, DType loss_type) {
  LossReduction reduction = loss_reduction(c.node);
  c.set_dtype(0, loss_type);
  c.set_dtype(1, c.dtype(0));
  c.require(types::indices.has(c.dtype(1)), "labels: got ", name_of(c.dtype(1)), ", expected int32 or int64");
  if (c.has_input(2)) {
    c.require(c.dtype(2) == c.dtype(0), "weights: got ", name_of(c.dtype(2)), ", expected ", name_of(c.dtype(0)));
  }
  if (reduction != LossReduction::none) c.set_shape(0, {});
  const Shape& scores = c.shape(0);
  c.set_shape(1, scores);
  c.require(scores.size() >= 2, "scores: got rank ", scores.size(), ", expected [batch, classes, ...]");
  Shape labels = scores;
  labels.erase(labels.begin() + 1);
  if (c.knows_shape(1)) {
    c.require(c.rank(1) == labels.size(), "labels: got shape ", shown(c.shape(1)), ", expected ", shown(labels),
              " for scores ", shown(scores));
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = c.unify(labels[i], c.shape(1)[i], "extent of labels");
  }
  if (c.has_input(2) && c.knows_shape(2)) {
    c.require(c.rank(2) == 1, "weights: got rank ", c.rank(2), ", expected one weight per class");
    c.unify(c.shape(2)[0], scores[1], "classes");
  }
  if (reduction == LossReduction::none) c.set_shape(0, std::move(labels));
}

LossShape loss_shape(const PrepareContext& c, std::size_t scores, std::size_t labels) {
  const Dims& d = c.in(scores).dims;
  LossShape s{d[0], d[1], product(d, 2, d.size())};
  c.require(c.in(labels).size() == s.labels(), "labels: got shape ", shown(c.in(labels).dims), ", expected ",
            s.labels(), " elements for scores ", shown(d));
  return s;
}

IgnoreIndex IgnoreIndex::of(const PrepareContext& c, std::optional<std::size_t> input) {
  IgnoreIndex ignore;
  ignore.fixed = ignore_attribute(c.node);
  if (input && c.has_input(*input)) {
    c.require(c.in(*input).size() == 1 && types::indices.has(c.in(*input).dtype), "ignore_index: got ",
              name_of(c.in(*input).dtype), shown(c.in(*input).dims), ", expected one int64");
    ignore.input = input;
    ignore.dtype = c.in(*input).dtype;
  }
  return ignore;
}

std::optional<std::int64_t> IgnoreIndex::read(const KernelArgs& a) const {
  if (!input) return fixed;
  std::int64_t value = 0;
  visit_index(dtype, [&]<class I>() { value = *a.in<I>(*input); });
  return value;
}

namespace {

/// Log probabilities; with one position per instance also the logarithms of the sums.
template <class T>
void log_probabilities(const LossShape& s, const T* scores, T* log_prob, double* log_sums) {
  if (s.area != 1) return softmax(scores, log_prob, s.batch, s.classes, s.area, true);
  if (s.classes == 0) return;
  parallel_for(s.batch, grain_for(8 * s.classes), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * s.classes;
    log_softmax_rows(scores + at, log_prob + at, end - begin, s.classes, log_sums + begin);
  });
}

}  // namespace

Kernel prepare_label_loss(PrepareContext& c, bool from_scores, std::optional<std::size_t> ignore_input) {
  DType dtype = c.in(0).dtype;
  DType label_type = c.in(1).dtype;
  DType loss_type = c.out(0).dtype;
  LossShape s = loss_shape(c, 0, 1);
  bool weighted = c.has_input(2);
  c.require(!weighted || c.in(2).size() == s.classes, "weights: expected ", s.classes, " values, one per class");
  bool wants_log_prob = c.has_output(1);
  LossReduction reduction = loss_reduction(c.node);
  // 0 / 0 by the standard; ONNX Runtime's training operators say 0.
  double mean_of_none = c.node.domain.empty() ? std::numeric_limits<double>::quiet_NaN() : 0;
  IgnoreIndex ignore = IgnoreIndex::of(c, ignore_input);
  ClassLogSums log_sums(s, dtype);
  const bool by_columns = from_scores && s.area != 1;
  std::size_t partial = c.reserve(by_columns ? log_sums.scratch_bytes() : 0);
  std::size_t scratch = c.reserve(static_cast<std::size_t>(3 * s.labels()) * sizeof(double));
  const std::int64_t work = from_scores && !by_columns ? 8 * s.classes : 16;
  return [=, where = c.node.label()](const KernelArgs& a) {
    std::int64_t n = s.labels();
    auto* losses = reinterpret_cast<double*>(a.scratch + scratch);
    double* log_sum = losses + 2 * n;
    visit_real(dtype, [&]<class T>() {
      const T* x = a.in<T>(0);
      if (by_columns) log_sums.run(x, log_sum, a.scratch + partial);
      if (wants_log_prob) log_probabilities(s, x, a.out<T>(1), log_sum);
      visit_index(label_type, [&]<class I>() {
        auto nll = [&](std::int64_t i, std::int64_t label) {
          auto score = static_cast<double>(x[((i / s.area) * s.classes + label) * s.area + i % s.area]);
          if (!from_scores) return -score;
          return (by_columns || wants_log_prob ? log_sum[i] : log_sum_exp_row(x + i * s.classes, s.classes)) - score;
        };
        label_losses(s, a.in<I>(1), weighted ? a.in<T>(2) : nullptr, ignore.read(a), where, nll, work, losses,
                     losses + n);
      });
    });
    visit_real(loss_type, [&]<class T>() { fold_losses(reduction, n, losses, losses + n, mean_of_none, a.out<T>(0)); });
  };
}

}  // namespace backpass
