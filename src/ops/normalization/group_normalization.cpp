// GroupNormalization, InstanceNormalization: each group of channels of each instance to mean 0 and variance 1, then
// scale and shift per channel. InstanceNormalization has as many groups as channels.
#include <cmath>

#include "gradient/standardize_rule.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "kernels/normalize.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  const Shape& x = c.shape(0);
  c.require(x.size() >= 2, "input: got rank ", x.size(), ", expected [batch, channels, ...]");
  for (std::size_t i = 1; i <= 2; ++i) {
    c.require(c.dtype(i) == c.dtype(0), "input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(0)));
    if (!c.knows_shape(i)) continue;
    c.require(c.rank(i) == 1, "input ", i, ": got shape ", shown(c.shape(i)), ", expected one value per channel");
    c.unify(c.shape(i)[0], x[1], "channels");
  }
}

void infer_group(InferContext& c) {
  std::int64_t groups = c.node.attr_int("num_groups");
  c.require(groups > 0, "num_groups: got ", groups, ", expected a positive number");
  infer(c);
  const Dim& channels = c.shape(0)[1];
  c.require(!channels.is_known() || channels.value() % groups == 0, "num_groups: got ", groups,
            ", expected a divisor of ", shown(channels), " channels");
}

Kernel prepare_groups(PrepareContext& c, std::int64_t groups) {
  constexpr std::int64_t kWorkPerElement = 4;
  DType dtype = c.in(0).dtype;
  const Dims& dims = c.in(0).dims;
  c.require(c.in(1).size() == dims[1] && c.in(2).size() == dims[1], "scale and bias: got ", c.in(1).size(), " and ",
            c.in(2).size(), " values, expected one per channel: ", dims[1]);
  std::int64_t batch = dims[0];
  std::int64_t channels = dims[1] == 0 ? 0 : dims[1] / groups;  // of one group
  std::int64_t area = product(dims, 2, dims.size());
  double epsilon = c.node.attr_float("epsilon", 1e-5F);
  return [=](const KernelArgs& a) {
    std::int64_t run = channels * area;
    if (run == 0) return;
    visit_real(dtype, [&]<class T>() {
      parallel_for(batch * groups, grain_for(run * kWorkPerElement), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          Moments m = moments(a.in<T>(0) + i * run, run);
          double inverse = 1 / std::sqrt(m.variance + epsilon);
          for (std::int64_t k = 0; k < channels; ++k) {
            std::int64_t channel = (i % groups) * channels + k;
            std::int64_t at = i * run + k * area;
            double factor = inverse * static_cast<double>(a.in<T>(1)[channel]);
            double offset = static_cast<double>(a.in<T>(2)[channel]) - m.rest * factor;
            affine_run(a.in<T>(0) + at, a.out<T>(0) + at, area, static_cast<T>(m.center), static_cast<T>(factor),
                       static_cast<T>(offset));
          }
        }
      });
    });
  };
}

Kernel prepare_group(PrepareContext& c) { return prepare_groups(c, c.node.attr_int("num_groups")); }
Kernel prepare_instance(PrepareContext& c) { return prepare_groups(c, c.in(0).dims[1]); }

/// [batch, groups, channels of a group, ...]
Value* grouped(GradientContext& g, Value* x, std::int64_t groups) {
  if (auto dims = g.known_dims(x)) {
    Dims shape{(*dims)[0], groups, (*dims)[1] / groups};
    shape.insert(shape.end(), dims->begin() + 2, dims->end());
    return g.reshape_to(x, g.b.ints(shape));
  }
  auto extents = [&](std::int64_t start, std::int64_t end) {
    return g.op("Shape", {x}, {{"start", start}, {"end", end}});
  };
  Value* count = g.b.ints({groups});
  return g.reshape_to(x,
                      g.concat({extents(0, 1), count, g.op("Div", {extents(1, 2), count}), extents(2, g.rank(x))}, 0));
}

/// `arranged` has a group's elements along the axes from 2 on.
void gradient_of(GradientContext& g, Value* (*arrange)(GradientContext&, Value*)) {
  const std::int64_t rank = g.rank(g.x(0));
  Value* x = arrange(g, g.x(0));
  std::vector<std::int64_t> axes;
  for (std::int64_t i = 2; i < g.rank(x); ++i) axes.push_back(i);
  Standardized s = standardize(g, x, std::move(axes), g.node.attr_float("epsilon", 1e-5F), true);
  Value* dy = widened(g, g.dy());
  Value* dz = g.mul(dy, per_channel(g, widened(g, g.x(1)), rank));
  Value* dx = standardize_gradient(g, s, arrange(g, dz));
  g.set(0, g.cast_like(g.reshape_like(dx, g.x(0)), g.x(0)));
  Value* z = g.reshape_like(s.z, g.x(0));
  g.set(1, g.cast_like(g.sum(g.mul(dy, z), axes_but_channels(rank), false), g.x(1)));
  g.set(2, g.cast_like(g.sum(dy, axes_but_channels(rank), false), g.x(2)));
}

void group_gradient(GradientContext& g) {
  gradient_of(g, [](GradientContext& c, Value* a) { return grouped(c, a, c.node.attr_int("num_groups")); });
}

void instance_gradient(GradientContext& g) {
  gradient_of(g, [](GradientContext& c, Value* a) { return c.rank(a) == 2 ? c.unsqueeze(a, {2}) : a; });
}

const Register kGroup({.name = "GroupNormalization",
                       .since = 21,
                       .doc = "groups of channels to mean 0 and variance 1, then scale and shift per channel",
                       .inputs = {3, 3},
                       .types = types::floats,
                       .infer = infer_group,
                       .prepare = prepare_group,
                       .gradient = group_gradient,
                       .half_through_float = true,
                       .in_place_input = 0});

const Register kInstance({.name = "InstanceNormalization",
                          .since = 22,
                          .doc = "every channel of every instance to mean 0 and variance 1, then scale and shift",
                          .inputs = {3, 3},
                          .types = types::floats,
                          .infer = infer,
                          .prepare = prepare_instance,
                          .gradient = instance_gradient,
                          .half_through_float = true,
                          .in_place_input = 0});

/// Until opset 20 scale and bias had one value per group: repeat each for the channels of its group.
const RegisterAdapter kPerGroup(
    {.op = "GroupNormalization", .below = 21, .lift = [](Builder& b, Node& node) {
       Value* groups = b.ints({node.attr_int("num_groups")});
       Value* channels = b.op("Shape", {node.input(0)}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}});
       Value* repeated = b.op("Concat", {groups, b.op("Div", {channels, groups})}, {{"axis", std::int64_t{0}}});
       for (std::size_t i = 1; i < node.inputs.size(); ++i) {
         Value* column = b.op("Unsqueeze", {node.inputs[i], b.ints({1})});
         b.graph.set_input(node, i, b.op("Reshape", {b.op("Expand", {column, repeated}), b.ints({-1})}));
       }
     }});

}  // namespace
}  // namespace backpass
