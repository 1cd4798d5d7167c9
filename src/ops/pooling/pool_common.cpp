#include "ops/pooling/pool_common.hpp"

#include "kernels/conv.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void require_spatial(InferContext& c, const Shape& x) {
  c.require(x.size() >= 3 && x.size() <= kMaxSpatialAxes + 2, "input is ", shown(x),
            ": expected [batch, channels, spatial...] with 1 to ", kMaxSpatialAxes, " spatial axes");
}

}  // namespace

Shape pool_shape(InferContext& c, const Shape& x) {
  require_spatial(c, x);
  std::span<const Dim> spatial(x.begin() + 2, x.end());
  c.require(c.node.has_attribute("kernel_shape"), "attribute kernel_shape is missing: expected ", spatial.size(),
            " extents");
  std::vector<rules::Window> windows = rules::windows(c.node, c.node.attr_ints("kernel_shape"), spatial);
  bool ceil_mode = c.node.attr_int("ceil_mode", 0) != 0;
  Shape y{x[0], x[1]};
  for (std::size_t i = 0; i < spatial.size(); ++i) {
    y.push_back(rules::window_output(c.node, spatial[i], windows[i], ceil_mode));
  }
  return y;
}

PoolGeometry pool_geometry(const Node& node, const Dims& x, const Dims& y) {
  PoolGeometry g;
  g.planes = x[0] * x[1];
  g.in.assign(x.begin() + 2, x.end());
  g.out.assign(y.begin() + 2, y.end());
  g.kernel = node.attr_ints("kernel_shape");
  for (const rules::Window& w : rules::windows(node, g.kernel, to_shape(g.in))) {
    g.stride.push_back(w.stride);
    g.dilation.push_back(w.dilation);
    g.pad_begin.push_back(w.pad_begin);
    g.pad_end.push_back(w.pad_end);
  }
  return g;
}

void infer_global_pool(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& x = c.shape(0);
  require_spatial(c, x);
  Shape y(x.size(), Dim(1));
  y[0] = x[0];
  y[1] = x[1];
  c.set_shape(0, std::move(y));
}

}  // namespace backpass
