// LabelledRows: the places of the labels that a loss does not ignore. With `classes`, labels are looked at as `loss`
// would: it sees those that are left alone, and could not tell at which place a wrong one was.
#include "graph/op.hpp"
#include "ops/losses/loss.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, DType::int64);
  const Dim all = product(c.shape(0));
  c.set_shape(0, {c.node.has_attribute("ignore_index") ? c.data_dependent("labelled", all) : all});
}

template <class I>
Tensor places_of(const Tensor& labels, std::int64_t ignored) {
  const I* label = labels.as<I>();
  const std::int64_t n = labels.size();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += static_cast<std::int64_t>(label[i]) != ignored ? 1 : 0;
  Tensor places(DType::int64, {count});
  auto* to = places.as<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    if (static_cast<std::int64_t>(label[i]) != ignored) *to++ = i;
  }
  return places;
}

void check_labels(const Node& node, const Tensor& labels, std::int64_t ignored) {
  if (!node.has_attribute("classes")) return;
  const std::int64_t classes = node.attr_int("classes");
  const std::string loss = node.attr_string("loss", node.label());
  visit_index(labels.dtype(), [&]<class I>() {
    for (std::int64_t i = 0; i < labels.size(); ++i) checked_label(labels.as<I>(), i, classes, ignored, loss);
  });
}

Tensor all_places(std::int64_t n) {
  Tensor places(DType::int64, {n});
  for (std::int64_t i = 0; i < n; ++i) places.as<std::int64_t>()[i] = i;
  return places;
}

void compute(ComputeContext& c) {
  const Tensor& labels = c.tensor(0);
  if (!c.node.has_attribute("ignore_index")) {
    c.outputs[0] = all_places(labels.size());
    return;
  }
  const std::int64_t ignored = c.node.attr_int("ignore_index");
  check_labels(c.node, labels, ignored);
  visit_index(labels.dtype(), [&]<class I>() { c.outputs[0] = places_of<I>(labels, ignored); });
}

const Register kLabelledRows({.name = "LabelledRows",
                              .domain = "backpass",
                              .doc = "places, in flattened labels, of those that are not `ignore_index`",
                              .types = types::indices,
                              .infer = infer,
                              .compute = compute});

}  // namespace
}  // namespace backpass
