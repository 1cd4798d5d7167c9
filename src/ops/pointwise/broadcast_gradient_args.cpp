// BroadcastGradientArgs: axes to sum a gradient over so that it gets back the shape of a broadcast operand.
#include <algorithm>

#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

struct Axes {
  std::vector<Dim> a;
  std::vector<Dim> b;
};

/// Axes, last to first, along which each operand was repeated. nullopt when symbols leave that open.
std::optional<Axes> repeated_axes(const std::string& label, const std::vector<Dim>& a, const std::vector<Dim>& b) {
  Axes axes;
  auto rank = static_cast<std::int64_t>(std::max(a.size(), b.size()));
  for (std::int64_t back = 1; back <= rank; ++back) {
    std::int64_t axis = rank - back;
    bool in_a = back <= std::ssize(a);
    bool in_b = back <= std::ssize(b);
    if (!in_a || !in_b) {
      (in_a ? axes.b : axes.a).emplace_back(axis);
      continue;
    }
    const Dim& x = a[a.size() - static_cast<std::size_t>(back)];
    const Dim& y = b[b.size() - static_cast<std::size_t>(back)];
    if (x == y) continue;
    if (!x.is_known() || !y.is_known()) return std::nullopt;
    if (!x.is(1) && !y.is(1)) {
      fail(label, " shapes ", to_string(a), " and ", to_string(b), " do not broadcast: extents ", x.str(), " and ",
           y.str());
    }
    (x.is(1) ? axes.a : axes.b).emplace_back(axis);
  }
  return axes;
}

void infer(InferContext& c) {
  c.set(0, DType::int64, {c.data_dependent("a_axes")});
  c.set(1, DType::int64, {c.data_dependent("b_axes")});
  for (std::size_t i = 0; i < 2; ++i) {
    c.require(c.dtype(i) == DType::int64, "input ", i, ": got ", name_of(c.dtype(i)), ", expected int64");
  }
  auto axes = repeated_axes(c.node.label(), c.ints(0), c.ints(1));
  if (!axes) return;
  c.set_shape(0, {std::ssize(axes->a)});
  c.set_shape(1, {std::ssize(axes->b)});
  movement::set_ints(c, 0, axes->a);
  movement::set_ints(c, 1, axes->b);
}

void compute(ComputeContext& c) {
  auto shape = [&](std::size_t i) {
    std::vector<std::int64_t> extents = c.tensor(i).to_ints();
    return std::vector<Dim>(extents.begin(), extents.end());
  };
  Axes axes = repeated_axes(c.node.label(), shape(0), shape(1)).value();
  if (c.has_output(0)) c.outputs[0] = Tensor::ints(to_dims(axes.a));
  if (c.has_output(1)) c.outputs[1] = Tensor::ints(to_dims(axes.b));
}

const Register broadcast_gradient_args{{.name = "BroadcastGradientArgs",
                                        .domain = "com.microsoft",
                                        .doc = "Axes, last to first, along which each of two shapes was broadcast.",
                                        .inputs = {2, 2},
                                        .outputs = {1, 2},
                                        .types = {DType::int64},
                                        .infer = infer,
                                        .compute = compute}};

}  // namespace
}  // namespace backpass
