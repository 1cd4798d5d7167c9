#include "ops/convolution/conv_common.hpp"

#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

std::int64_t groups_of(const Node& node) {
  std::int64_t group = node.attr_int("group", 1);
  if (group < 1) fail(node.label(), " attribute group is ", group, ": expected a positive number");
  return group;
}

}  // namespace

std::vector<std::int64_t> kernel_extents(const Node& node, std::span<const std::int64_t> weights) {
  std::vector<std::int64_t> own(weights.begin() + 2, weights.end());
  std::vector<std::int64_t> stated = node.attr_ints("kernel_shape");
  if (!stated.empty() && stated != own) {
    fail(node.label(), " attribute kernel_shape is ", to_string(stated), ": expected ", to_string(own),
         ", the extents of the weights");
  }
  return own;
}

Shape conv_shape(InferContext& c, const Shape& x, const Shape& w) {
  c.require(x.size() >= 3 && x.size() <= kMaxSpatialAxes + 2, "input is ", shown(x),
            ": expected [batch, channels, spatial...] with 1 to ", kMaxSpatialAxes, " spatial axes");
  c.require(w.size() == x.size(), "weights are ", shown(w), ": expected ", x.size(), " axes, as many as the input");
  std::int64_t group = groups_of(c.node);
  c.unify(x[1], w[1] * group, "input channels against weights' channels times group");
  c.require(!w[0].is_known() || w[0].value() % group == 0, "weights have ", shown(w[0]),
            " output channels: expected a multiple of group = ", group);
  Shape y{x[0], w[0]};
  std::span<const Dim> spatial(x.begin() + 2, x.end());
  if (!is_known(Shape(w.begin() + 2, w.end()))) {
    for (std::size_t i = 0; i < spatial.size(); ++i) y.push_back(c.data_dependent(concat("convolved", i)));
    return y;
  }
  Dims weights(2, 1);
  for (std::size_t i = 2; i < w.size(); ++i) weights.push_back(w[i].value());
  std::vector<rules::Window> windows = rules::windows(c.node, kernel_extents(c.node, weights), spatial);
  for (std::size_t i = 0; i < spatial.size(); ++i) {
    y.push_back(rules::window_output(c.node, spatial[i], windows[i], false));
  }
  return y;
}

void check_conv_bias(InferContext& c, std::size_t input, const Dim& channels) {
  if (!c.has_input(input) || !c.knows_shape(input)) return;
  const Shape& bias = c.shape(input);
  c.require(bias.size() == 1, "bias is ", shown(bias), ": expected one axis");
  c.unify(bias[0], channels, "elements of the bias against output channels");
}

void infer_conv_gradient(InferContext& c, const Dim& channels) {
  for (std::size_t i = 0; i < 3; ++i) {
    c.require(c.dtype(i) == c.dtype(0), "input ", i, " has element type ", name_of(c.dtype(i)), ": expected ",
              name_of(c.dtype(0)));
    if (c.has_output(i)) c.set_dtype(i, c.dtype(0));
  }
  const Shape& dy = c.shape(0);
  const Shape& x = c.shape(1);
  const Shape& w = c.shape(2);
  c.require(x.size() >= 3 && x.size() <= kMaxSpatialAxes + 2 && w.size() == x.size() && dy.size() == x.size(),
            "dY, X and W are ", shown(dy), ", ", shown(x), " and ", shown(w),
            ": expected [batch, channels, spatial...] with the same number of axes");
  c.unify(dy[0], x[0], "batch of dY and X");
  c.unify(dy[1], channels, "channels of dY against the weights");
  if (c.has_output(0)) c.set_shape(0, x);
  if (c.has_output(1)) c.set_shape(1, w);
  if (c.has_output(2)) c.set_shape(2, {channels});
}

ConvGeometry conv_geometry(const Node& node, const Dims& x, const Dims& w, const Dims& y) {
  ConvGeometry g;
  g.batch = x[0];
  g.groups = groups_of(node);
  g.in_channels = w[1];
  g.out_channels = w[0] / g.groups;
  g.in.assign(x.begin() + 2, x.end());
  g.out.assign(y.begin() + 2, y.end());
  g.kernel.assign(w.begin() + 2, w.end());
  for (const rules::Window& v : rules::windows(node, g.kernel, to_shape(g.in))) {
    g.stride.push_back(v.stride);
    g.dilation.push_back(v.dilation);
    g.pad_begin.push_back(v.pad_begin);
    g.pad_end.push_back(v.pad_end);
  }
  return g;
}

}  // namespace backpass
