// Gradient of SoftmaxCrossEntropyLoss from its log probabilities, under the names ONNX Runtime gives it:
//   SoftmaxCrossEntropyLossGrad(dy, log_prob, labels, weights, bias) -> dscores
//   SoftmaxCrossEntropyLossInternalGrad(dy, log_prob, labels, weights, ignore_index, bias) -> dscores
// `bias` (another contribution to the gradient of the scores) is added to the result. In plans, attribute `from_scores`
// says that the scores stand in the place of log_prob, which is computed again, to the same bits.
#include <algorithm>

#include "graph/op.hpp"
#include "graph/substitute.hpp"
#include "ops/losses/label_loss.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::size_t kIgnoreInput = 4;

constexpr std::string_view kFromScores = "from_scores";

void infer_with(InferContext& c, DType dtype, std::size_t bias) {
  c.set_dtype(0, dtype);
  loss_reduction(c.node);
  c.require(types::indices.has(c.dtype(2)), "labels: got ", name_of(c.dtype(2)), ", expected int32 or int64");
  const Shape& log_prob = c.shape(1);
  c.require(log_prob.size() >= 2, "log_prob: got rank ", log_prob.size(), ", expected [batch, classes, ...]");
  if (c.knows_shape(2)) {
    c.require(c.rank(2) + 1 == log_prob.size(), "labels: got shape ", shown(c.shape(2)), " for log_prob ",
              shown(log_prob));
  }
  if (c.has_input(bias)) {
    c.require(c.dtype(bias) == dtype, "bias: got ", name_of(c.dtype(bias)), ", expected ", name_of(dtype));
  }
  c.set_shape(0, log_prob);
}

/// What exp(log_prob) of each position is multiplied with: dy * weight, divided by the sum of weights for the mean.
template <class T, class I>
void position_factors(const LossShape& s, LossReduction reduction, const T* dy, const I* labels, const T* weights,
                      const std::optional<std::int64_t>& ignore, const std::string& where, T* factors) {
  double total = 0;
  for (std::int64_t i = 0; i < s.labels(); ++i) {
    auto label = checked_label(labels, i, s.classes, ignore, where);
    double weight = label ? label_weight(weights, *label) : 0;
    total += weight;
    const auto flow = static_cast<double>(dy[reduction == LossReduction::none ? i : 0]);
    factors[i] = label ? static_cast<T>(weight * flow) : T{0};  // also where the loss is not a number
  }
  if (reduction != LossReduction::mean || total == 0) return;
  for (std::int64_t i = 0; i < s.labels(); ++i) factors[i] = static_cast<T>(static_cast<double>(factors[i]) / total);
}

/// Instance b of exp(log_prob) * factor.
template <class T>
void scaled_exponentials(const LossShape& s, std::int64_t b, const T* log_prob, const T* factors, T* dx) {
  const T* factor = factors + b * s.area;
  const T* from = log_prob + b * s.classes * s.area;
  T* to = dx + b * s.classes * s.area;
  if (s.area == 1) return exp_times(from, to, s.classes, factor, true);
  for (std::int64_t k = 0; k < s.classes; ++k) exp_times(from + k * s.area, to + k * s.area, s.area, factor, false);
}

/// log_prob of instances, again: the bits are those that keeping it would give.
template <class T>
void log_probabilities(const LossShape& s, std::int64_t begin, std::int64_t end, const T* scores, T* log_prob) {
  const std::int64_t size = s.classes * s.area;
  if (s.area == 1) return softmax_rows(scores + begin * size, log_prob + begin * size, end - begin, s.classes, true);
  for (std::int64_t b = begin; b < end; ++b) {
    softmax_columns(scores + b * size, log_prob + b * size, s.classes, s.area, s.area, true);
  }
}

/// Where the factor is 0 so is the result, whatever the scores are.
template <class T>
void clear_without_flow(const LossShape& s, std::int64_t b, const T* factors, T* dx) {
  const T* factor = factors + b * s.area;
  T* to = dx + b * s.classes * s.area;
  for (std::int64_t i = 0; i < s.area; ++i) {
    if (factor[i] != T{0}) continue;
    for (std::int64_t k = 0; k < s.classes; ++k) to[k * s.area + i] = T{0};
  }
}

/// Instance b: minus the factor at the label.
template <class T, class I>
void subtract_labels(const LossShape& s, std::int64_t b, const I* labels, const T* factors,
                     const std::optional<std::int64_t>& ignore, T* dx) {
  for (std::int64_t i = 0; i < s.area; ++i) {
    auto label = static_cast<std::int64_t>(labels[b * s.area + i]);
    if (!ignore || label != *ignore) dx[(b * s.classes + label) * s.area + i] -= factors[b * s.area + i];
  }
}

Kernel prepare_with(PrepareContext& c, std::optional<std::size_t> ignore_input, std::size_t bias_input) {
  DType dtype = c.in(1).dtype;
  DType label_type = c.in(2).dtype;
  LossShape s = loss_shape(c, 1, 2);
  LossReduction reduction = loss_reduction(c.node);
  c.require(c.in(0).size() == (reduction == LossReduction::none ? s.labels() : 1), "dy: got ", shown(c.in(0).dims),
            ", expected the shape of the loss");
  bool weighted = c.has_input(3);
  c.require(!weighted || c.in(3).size() == s.classes, "weights: expected ", s.classes, " values, one per class");
  c.require(c.in(0).dtype == dtype && c.out(0).dtype == dtype, "float32 and float64 cannot be mixed");
  const bool biased = c.has_input(bias_input);
  const bool from_scores = c.node.attr_int(kFromScores, 0) != 0;
  std::int64_t n = c.in(1).size();
  c.require(!biased || c.in(bias_input).size() == n, "bias: got ", biased ? to_string(c.in(bias_input).dims) : "",
            ", expected the shape of log_prob");
  IgnoreIndex ignore = IgnoreIndex::of(c, ignore_input);
  std::size_t scratch = c.reserve(byte_size(dtype, s.labels()));
  return [=, where = c.node.label()](const KernelArgs& a) {
    auto ignored = ignore.read(a);
    visit_real(dtype, [&]<class T>() {
      T* factors = reinterpret_cast<T*>(a.scratch + scratch);
      visit_index(label_type, [&]<class I>() {
        position_factors(s, reduction, a.in<T>(0), a.in<I>(2), weighted ? a.in<T>(3) : nullptr, ignored, where,
                         factors);
        parallel_for(s.batch, grain_for(s.classes * s.area * 8), [&](std::int64_t begin, std::int64_t end) {
          if (from_scores) log_probabilities(s, begin, end, a.in<T>(1), a.out<T>(0));
          for (std::int64_t b = begin; b < end; ++b) {
            scaled_exponentials(s, b, from_scores ? a.out<T>(0) : a.in<T>(1), factors, a.out<T>(0));
            if (from_scores) clear_without_flow(s, b, factors, a.out<T>(0));
            subtract_labels(s, b, a.in<I>(2), factors, ignored, a.out<T>(0));
          }
        });
      });
      if (!biased) return;
      for (std::int64_t i = 0; i < n; ++i) a.out<T>(0)[i] += a.in<T>(bias_input)[i];
    });
  };
}

void infer(InferContext& c) { infer_with(c, c.dtype(1), 4); }
Kernel prepare(PrepareContext& c) { return prepare_with(c, std::nullopt, 4); }

void infer_internal(InferContext& c) {
  std::int64_t code = c.node.attr_int("output_type", 0);
  c.require(code == 0 || (is_known_dtype(code) && is_float(static_cast<DType>(code))), "output_type: got ", code,
            ", expected a float type");
  infer_with(c, code == 0 ? c.dtype(1) : static_cast<DType>(code), 5);
}
Kernel prepare_internal(PrepareContext& c) { return prepare_with(c, kIgnoreInput, 5); }

const Register kGrad({.name = "SoftmaxCrossEntropyLossGrad",
                      .domain = "com.microsoft",
                      .doc = "gradient of SoftmaxCrossEntropyLoss",
                      .inputs = {3, 5},
                      .types = types::floats,
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = cross_entropy_second_gradient,
                      .half_through_float = true,
                      .in_place_input = 1});

const Register kInternalGrad({.name = "SoftmaxCrossEntropyLossInternalGrad",
                              .domain = "com.microsoft",
                              .doc = "gradient of SoftmaxCrossEntropyLossInternal",
                              .inputs = {3, 6},
                              .types = types::floats,
                              .infer = infer_internal,
                              .prepare = prepare_internal,
                              .gradient = internal_cross_entropy_second_gradient,
                              .half_through_float = true,
                              .in_place_input = 1});

bool is_loss(const Node& node) {
  return (node.op == "SoftmaxCrossEntropyLoss" && node.domain.empty()) ||
         (node.op == "SoftmaxCrossEntropyLossInternal" && node.domain == "com.microsoft");
}

/// From the scores, if they have the element type of everything else.
std::optional<Substitute> without_log_prob(const Node& reader, const Value& log_prob) {
  const Node* loss = log_prob.producer;
  if (loss == nullptr || !is_loss(*loss) || loss->output(1) != &log_prob) return std::nullopt;
  if (reader.input(1) != &log_prob || reader.input(0) == &log_prob) return std::nullopt;
  const DType dtype = log_prob.type.dtype;
  if (loss->input(0)->type.dtype != dtype || reader.output(0)->type.dtype != dtype) return std::nullopt;
  Substitute found{reader.domain, reader.op, reader.name, reader.inputs, reader.attributes};
  found.inputs[1] = loss->input(0);
  found.attributes.emplace(kFromScores, std::int64_t{1});
  return found;
}

const RegisterSubstitute kWithout("com.microsoft", "SoftmaxCrossEntropyLossGrad", without_log_prob);
const RegisterSubstitute kInternalWithout("com.microsoft", "SoftmaxCrossEntropyLossInternalGrad", without_log_prob);

}  // namespace
}  // namespace backpass
