#include "ops/pooling/pool_rule.hpp"

#include "gradient/forward_output.hpp"
#include "gradient/fused.hpp"
#include "kernels/pool_windows.hpp"
#include "ops/convolution/conv_rule.hpp"
#include "ops/pooling/pool_common.hpp"

namespace backpass {
namespace {

/// Where each window found its maximum: a second output of the node itself where its indices count row by row.
Value* max_indices(GradientContext& g) {
  if (g.node.attr_int("storage_order", 0) == 0)
    return forward_output(g, 1, Type::tensor(DType::int64, g.y()->type.shape));
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  std::erase_if(attributes, [](const auto& a) { return a.first == "storage_order"; });
  return g.b.ops("MaxPool", {g.x()}, 2, attributes)[1];
}

bool knows_image(const Value* x) {
  const Shape& shape = *x->type.shape;
  return is_known(Shape(shape.begin() + 2, shape.end()));
}

/// [N, C, ...] as [N * C, 1, ...]
Value* planes(GradientContext& g, Value* a) {
  Value* shape = g.shape_of(a);
  Value* count = g.mul(g.slice(shape, 0, 1, 0), g.slice(shape, 1, 2, 0));
  return g.reshape_to(a, g.concat({count, g.b.ints({1}), g.slice(shape, 2, g.rank(a), 0)}, 0));
}

/// The windows of a pooling over x; where their pads are known only at run time, over x with those put around it.
struct Pooling {
  ConvForm form;
  Value* x;
  Value* pads;  // null: numbers, in the form
};

Pooling pooling_of(GradientContext& g) {
  std::vector<std::int64_t> kernel = g.node.attr_ints("kernel_shape");
  Pooling p{window_form(g, g.x(), to_shape(kernel)), g.x(), nullptr};
  p.pads = unsettled_pads(g, p.form, g.x(), g.b.ints(kernel));
  if (p.pads != nullptr) p.x = g.op("Pad", {g.x(), p.pads});
  return p;
}

/// Each element of x receives the sum of `share` over the windows that hold it.
Value* spread(GradientContext& g, const Pooling& p, Value* share) {
  Shape kernel{1, 1};
  for (const rules::Window& w : p.form.windows) kernel.push_back(w.kernel);
  Value* ones = g.op("Expand", {g.one(share), g.b.ints(to_dims(kernel))});
  Value* x = planes(g, p.x);
  Value* dx = g.reshape_like(conv_input_gradient(g, p.form, planes(g, share), x, ones), p.x);
  return p.pads == nullptr ? dx : cropped(g, dx, p.pads, g.x());
}

/// Number of positions of each window along one axis that are below `end`, which counts from the first element.
Value* positions_below(GradientContext& g, const rules::Window& w, Value* starts, Value* end) {
  Value* steps = g.div(g.add(g.sub(end, starts), g.b.integer(w.dilation - 1)), g.b.integer(w.dilation));
  return g.op("Min", {g.op("Max", {steps, g.b.integer(0)}), g.b.integer(w.kernel)});
}

/// What the mean of each window along one axis divides by, 1-D.
Value* axis_divisor(GradientContext& g, const Pooling& p, std::size_t i, bool count_padding) {
  const rules::Window& w = p.form.windows[i];
  const std::int64_t axis = static_cast<std::int64_t>(i) + 2;
  const std::int64_t rank = g.rank(g.x());
  auto pad = [&](std::int64_t at, std::int64_t number) {
    return p.pads == nullptr ? g.b.integer(number) : g.gather(p.pads, g.b.integer(at), 0);
  };
  Value* extent = g.extent(g.x(), axis);
  Value* outputs = g.op("Range", {g.b.integer(0), g.extent(g.y(), axis), g.b.integer(1)});
  Value* starts = g.sub(g.mul(outputs, g.b.integer(w.stride)), pad(axis, w.pad_begin));
  if (count_padding) return positions_below(g, w, starts, g.add(extent, pad(axis + rank, w.pad_end)));
  return g.sub(positions_below(g, w, starts, extent), positions_below(g, w, starts, g.b.integer(0)));
}

/// Broadcasts against dY.
Value* divisor(GradientContext& g, const Pooling& p) {
  const bool count_padding = g.node.attr_int("count_include_pad", 0) != 0;
  const std::size_t spatial = p.form.windows.size();
  Value* product = nullptr;
  for (std::size_t i = 0; i < spatial; ++i) {
    std::vector<std::int64_t> shape(spatial - i, 1);
    shape[0] = -1;
    Value* counts = g.reshape(axis_divisor(g, p, i, count_padding), shape);
    product = product == nullptr ? counts : g.mul(product, counts);
  }
  return g.cast_like(g.op("Max", {product, g.b.integer(1)}), g.dy());
}

}  // namespace

void max_pool_gradient(GradientContext& g) {
  Value* flat = g.op("Expand", {g.zero(), g.reshape(g.size_of(g.x()), {1})});
  Value* indices = g.reshape(max_indices(g), {-1});
  Value* added = g.op("ScatterElements", {flat, indices, g.reshape(g.dy(), {-1})},
                      {{"axis", std::int64_t{0}}, {"reduction", std::string("add")}});
  g.set(0, g.reshape_like(added, g.x()));
}

void max_pool_fused_gradient(GradientContext& g) {
  g.rank(g.x());
  if (g.node.attr_int("storage_order", 0) != 0) return max_pool_gradient(g);
  std::vector<Value*> reads{g.dy(), max_indices(g)};
  if (!knows_image(g.x())) reads.push_back(g.x());
  set_by_fused(g, "MaxPoolGrad", std::move(reads), 1, "");
}

void average_pool_gradient(GradientContext& g) {
  Pooling p = pooling_of(g);
  g.set(0, spread(g, p, g.div(g.dy(), divisor(g, p))));
}

void average_pool_fused_gradient(GradientContext& g) {
  g.rank(g.x());
  std::vector<Value*> reads{g.dy()};
  if (!knows_image(g.x())) reads.push_back(g.x());
  set_by_fused(g, "AveragePoolGrad", std::move(reads), 1, "");
}

void lp_pool_gradient(GradientContext& g) {  // d/dx = sign(x) |x|^(p-1) y^(1-p)
  auto p = static_cast<double>(g.node.attr_int("p", 2));
  Pooling pooling = pooling_of(g);
  Value* share = g.dy();
  if (p != 1) {
    Value* is_zero = g.equal(g.y(), g.zero(g.y()));
    Value* safe = g.where(is_zero, g.one(g.y()), g.y());
    share = g.where(is_zero, g.zero(), g.mul(g.dy(), g.op("Pow", {safe, g.number(1 - p)})));
  }
  Value* sums = spread(g, pooling, share);
  Value* slope = p == 2 ? g.x() : g.op("Sign", {g.x()});
  if (p != 1 && p != 2) slope = g.mul(slope, g.op("Pow", {g.op("Abs", {g.x()}), g.number(p - 1)}));
  g.set(0, g.mul(sums, slope));
}

}  // namespace backpass
