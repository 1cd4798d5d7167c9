#include "ops/losses/linear_loss_node.hpp"

#include <charconv>
#include <iterator>

#include "ops/losses/label_loss.hpp"
#include "support/convert.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kWeight, kLabels, kBias, kClassWeights };
constexpr Input kDifferentiated[] = {kX, kWeight, kBias};

bool classes_first(const Node& node) { return node.attr_int("transB", 0) != 0; }

void check_types(InferContext& c, std::size_t first) {
  const DType dtype = c.dtype(first + kX);
  c.require(types::reals.has(dtype), "x: got ", name_of(dtype), ", expected float32 or float64");
  c.require(types::indices.has(c.dtype(first + kLabels)), "labels: got ", name_of(c.dtype(first + kLabels)),
            ", expected int32 or int64");
  const DType weight = c.dtype(first + kWeight);
  c.require(weight == dtype || types::halves.has(weight), "weight: got ", name_of(weight), ", expected ",
            name_of(dtype), " as x has, or a float type of 16 bits");
  for (std::size_t i : {kBias, kClassWeights}) {
    if (!c.has_input(first + i)) continue;
    c.require(c.dtype(first + i) == dtype, "element type of input ", first + i, ": got ", name_of(c.dtype(first + i)),
              ", expected ", name_of(dtype), " as x has");
  }
}

void check_attributes(InferContext& c) {
  const float smoothing = c.node.attr_float("label_smoothing", 0);
  c.require(smoothing >= 0 && smoothing <= 1, "label_smoothing: got ", smoothing, ", expected [0, 1]");
  const std::int64_t rounded = c.node.attr_int("weight_type", 0);
  c.require(rounded == 0 || (is_known_dtype(rounded) && types::halves.has(static_cast<DType>(rounded))),
            "weight_type: got ", rounded, ", expected a float type of 16 bits");
}

/// Labels come from data: each is checked before anything is computed. Gives the weight of those that count.
template <class T, class I>
double count_rows(const LinearLossShape& s, const I* labels, const T* weights, double kept,
                  const std::optional<std::int64_t>& ignore, const std::string& where, CountedRows<T>& counted) {
  double total = 0;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    const auto label = checked_label(labels, i, s.classes, ignore, where);
    if (!label) continue;
    const double weight = label_weight(weights, *label);
    counted.rows[counted.count] = i;
    counted.labels[counted.count] = *label;
    counted.weights[counted.count] = static_cast<T>(weight * kept);
    total += weight;
    ++counted.count;
  }
  return total;
}

}  // namespace

double label_smoothing(const Node& node) {
  char text[32];
  const char* end = std::to_chars(std::begin(text), std::end(text), node.attr_float("label_smoothing", 0)).ptr;
  double value = 0;
  std::from_chars(std::begin(text), end, value);
  return value;
}

Dim infer_linear_loss(InferContext& c, std::size_t first, std::size_t gradients) {
  check_types(c, first);
  check_attributes(c);
  for (std::size_t k = 0; k < 3; ++k) {
    const std::size_t i = first + kDifferentiated[k];
    if (!c.has_output(gradients + k)) continue;
    c.require(c.has_input(i), "gradient ", k, ": expected none without its input");
    c.set_dtype(gradients + k, c.dtype(first + kX));
    if (c.knows_shape(i)) c.set_shape(gradients + k, c.shape(i));
  }
  const Shape& x = c.shape(first + kX);
  const Shape& weight = c.shape(first + kWeight);
  const Shape& labels = c.shape(first + kLabels);
  c.require(x.size() == 2 && weight.size() == 2 && labels.size() == 1, "shapes: got x ", shown(x), ", weight ",
            shown(weight), ", labels ", shown(labels), ", expected two, two and one axis");
  const std::size_t classes = classes_first(c.node) ? 0 : 1;
  c.unify(x[1], weight[1 - classes], "features");
  for (std::size_t i : {first + kBias, first + kClassWeights}) {
    if (!c.has_input(i)) continue;
    c.require(c.rank(i) == 1, "input ", i, ": got shape ", shown(c.shape(i)), ", expected one value per class");
    c.unify(c.shape(i)[0], weight[classes], "classes");
  }
  return c.unify(x[0], labels[0], "rows of x and labels");
}

LinearLossNode::LinearLossNode(PrepareContext& c, std::size_t first, std::size_t gradients)
    : first_(first),
      gradients_(gradients),
      dtype_(c.in(first + kX).dtype),
      weight_type_(c.in(first + kWeight).dtype),
      label_type_(c.in(first + kLabels).dtype),
      has_bias_(c.has_input(first + kBias)),
      has_weights_(c.has_input(first + kClassWeights)),
      smoothing_(label_smoothing(c.node)),
      ignore_(ignore_attribute(c.node)),
      where_(c.node.label()) {
  for (std::size_t k = 0; k < 3; ++k) wants_[k] = c.has_output(gradients + k);
  if (weight_type_ == dtype_) rounded_ = static_cast<DType>(c.node.attr_int("weight_type", 0));
  const Dims& x = c.in(first + kX).dims;
  const Dims& weight = c.in(first + kWeight).dims;
  const bool is_first = classes_first(c.node);
  shape_ = {.rows = x[0],
            .features = x[1],
            .classes = weight[is_first ? 0 : 1],
            .classes_first = is_first,
            .wants_gradients = wants_[0] || wants_[1] || wants_[2],
            .converts_weight = weight_type_ != dtype_ || rounded_ != DType::undefined,
            .rows_at_once = c.node.attr_int("rows_at_once", 0)};
  shape_.multiplies_narrow = dtype_ == DType::float32 && multiplies_bfloat16() &&
                             (weight_type_ == DType::bfloat16 || rounded_ == DType::bfloat16);
  if (shape_.multiplies_narrow) products_ = std::make_shared<HalfGemmCache>();
  work_ = c.reserve(linear_loss_scratch(shape_, byte_size(dtype_, 1)));
  losses_ = c.reserve(byte_size(DType::float64, shape_.rows));
  rows_ = c.reserve(byte_size(DType::int64, shape_.rows));
  labels_ = c.reserve(byte_size(DType::int64, shape_.rows));
  weights_ = c.reserve(byte_size(dtype_, shape_.rows));
}

template <class T>
double LinearLossNode::run_as(const KernelArgs& a, const T* flows, bool is_mean) const {
  const T* class_weights = has_weights_ ? a.in<T>(first_ + kClassWeights) : nullptr;
  CountedRows<T> counted{.rows = reinterpret_cast<std::int64_t*>(a.scratch + rows_),
                         .labels = reinterpret_cast<std::int64_t*>(a.scratch + labels_),
                         .weights = reinterpret_cast<T*>(a.scratch + weights_)};
  double total = 0;
  visit_index(label_type_, [&]<class I>() {
    const I* labels = a.in<I>(first_ + kLabels);
    total = count_rows(shape_, labels, class_weights, 1 - smoothing_, ignore_, where_, counted);
  });
  auto gradient = [&](std::size_t k) { return wants_[k] ? a.out<T>(gradients_ + k) : nullptr; };
  const LinearLossData<T> data{.x = a.in<T>(first_ + kX),
                               .weight = {a.inputs[first_ + kWeight], weight_type_, rounded_},
                               .bias = has_bias_ ? a.in<T>(first_ + kBias) : nullptr,
                               .class_weights = class_weights,
                               .share = smoothing_ / static_cast<double>(std::max<std::int64_t>(1, shape_.classes)),
                               .flows = flows,
                               .divisor = is_mean && total != 0 ? total : 1,
                               .losses = reinterpret_cast<double*>(a.scratch + losses_),
                               .dx = gradient(0),
                               .dweight = gradient(1),
                               .dbias = gradient(2),
                               .products = products_.get()};
  linear_loss(shape_, data, counted, a.scratch + work_);
  return total;
}

double LinearLossNode::run(const KernelArgs& a, const void* flows, bool is_mean) const {
  double total = 0;
  visit_real(dtype_, [&]<class T>() { total = run_as(a, static_cast<const T*>(flows), is_mean); });
  return total;
}

}  // namespace backpass
