#include "ops/convolution/conv_rule.hpp"

#include <algorithm>

#include "gradient/fused.hpp"

namespace backpass {
namespace {

using Ints = std::vector<std::int64_t>;

std::int64_t reach(const rules::Window& w) { return w.dilation * (w.kernel - 1) + 1; }

template <class F>
Ints per_axis(const std::vector<rules::Window>& windows, const F& f) {
  Ints values;
  for (const rules::Window& w : windows) values.push_back(f(w));
  return values;
}

Ints pads_of(const std::vector<rules::Window>& windows) {
  Ints pads = per_axis(windows, [](const auto& w) { return w.pad_begin; });
  Ints ends = per_axis(windows, [](const auto& w) { return w.pad_end; });
  pads.insert(pads.end(), ends.begin(), ends.end());
  return pads;
}

Ints spatial_axes(std::size_t count) {
  Ints axes;
  for (std::size_t i = 0; i < count; ++i) axes.push_back(static_cast<std::int64_t>(i) + 2);
  return axes;
}

/// Exchanges batch and channels.
Ints swapped(std::size_t spatial) {
  Ints perm{1, 0};
  for (std::int64_t axis : spatial_axes(spatial)) perm.push_back(axis);
  return perm;
}

/// What strides leave over at the end of each axis of X; nullopt where only run time can tell.
std::optional<Ints> left_over(const ConvForm& form, const Shape& x, const Shape& dy) {
  Ints rest;
  for (std::size_t i = 0; i < form.windows.size(); ++i) {
    const rules::Window& w = form.windows[i];
    if (w.kernel == 0) return std::nullopt;
    Dim missing = x[i + 2] + (w.pad_begin + w.pad_end) - (dy[i + 2] - 1) * w.stride - reach(w);
    if (!missing.is_known()) return std::nullopt;
    rest.push_back(missing.value());
  }
  return rest;
}

/// [N, G*C, ...] as [first of N and C per group, G * second, ...], so that groups stay apart.
Value* regrouped(GradientContext& g, Value* a, std::int64_t group, bool batch_inside) {
  const auto spatial = static_cast<std::size_t>(g.rank(a)) - 2;
  if (group == 1) return g.transpose(a, swapped(spatial));
  Value* shape = g.shape_of(a);
  Value* tail = g.slice(shape, 2, static_cast<std::int64_t>(spatial) + 2, 0);
  Value* batch = g.slice(shape, 0, 1, 0);
  Value* channels = g.div(g.slice(shape, 1, 2, 0), g.b.integer(group));
  Value* count = g.b.ints({group});
  Value* split = g.reshape_to(a, g.concat({batch, count, channels, tail}, 0));  // N, G, C
  Ints perm = batch_inside ? Ints{2, 1, 0} : Ints{1, 2, 0};
  for (std::int64_t axis : spatial_axes(spatial)) perm.push_back(axis + 1);
  Value* moved = g.transpose(split, std::move(perm));
  // X: [C, G*N, ...]; dY, which plays the weights: [G*M, N, ...]
  Value* inner = g.mul(count, batch_inside ? batch : channels);
  Value* to = batch_inside ? g.concat({channels, inner, tail}, 0) : g.concat({inner, batch, tail}, 0);
  return g.reshape_to(moved, to);
}

bool is_empty(const Value* v) {
  return v->type.shape &&
         std::any_of(v->type.shape->begin(), v->type.shape->end(), [](const Dim& d) { return d.is(0); });
}

std::string auto_pad_of(const Node& node) { return node.attr_string("auto_pad", "NOTSET"); }

bool is_same(const Node& node) {
  std::string mode = auto_pad_of(node);
  return mode == "SAME_UPPER" || mode == "SAME_LOWER";
}

/// Whether the windows' pads are the final ones.
bool pads_are_known(const Node& node, const ConvForm& form, const Shape& x) {
  if (!is_same(node)) return true;
  for (std::size_t i = 0; i < form.windows.size(); ++i) {
    const rules::Window& v = form.windows[i];
    if (v.kernel == 0 || (v.stride != 1 && !x[i + 2].is_known())) return false;
  }
  return true;
}

/// 1-D int64 padding of every axis [begins, ends] as SAME_* gives it, from the extents at run time.
Value* same_pads(GradientContext& g, const ConvForm& form, Value* x, Value* kernel) {
  const auto end = static_cast<std::int64_t>(form.windows.size()) + 2;
  Value* strides = g.b.ints(per_axis(form.windows, [](const auto& v) { return v.stride; }));
  Value* dilations = g.b.ints(per_axis(form.windows, [](const auto& v) { return v.dilation; }));
  Value* one = g.b.integer(1);
  Value* extents = g.slice(g.shape_of(x), 2, end, 0);
  Value* reaches = g.add(g.mul(g.sub(kernel, one), dilations), one);
  Value* last = g.div(g.sub(extents, one), strides);  // windows - 1
  Value* total = g.op("Max", {g.sub(g.add(g.mul(last, strides), reaches), extents), g.b.integer(0)});
  Value* small = g.div(total, g.b.integer(2));
  Value* large = g.sub(total, small);
  Value* none = g.b.ints({0, 0});
  bool upper = auto_pad_of(g.node) == "SAME_UPPER";
  return g.concat({none, upper ? small : large, none, upper ? large : small}, 0);
}

}  // namespace

ConvForm window_form(const GradientContext& g, const Value* x, std::span<const Dim> kernel) {
  g.rank(x);
  std::span<const Dim> spatial(x->type.shape->begin() + 2, x->type.shape->end());
  Ints stated;
  for (const Dim& k : kernel) stated.push_back(k.is_known() ? k.value() : 1);
  ConvForm form{rules::windows(g.node, stated, spatial), g.node.attr_int("group", 1)};
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    rules::Window& v = form.windows[i];
    if (!kernel[i].is_known()) v.kernel = 0;
    if (v.kernel == 0 || spatial[i].is_known() || v.stride != 1 || !is_same(g.node)) continue;
    std::int64_t total = reach(v) - 1;  // with stride 1 the padding of SAME_* does not depend on the extent
    v.pad_begin = auto_pad_of(g.node) == "SAME_UPPER" ? total / 2 : total - total / 2;
    v.pad_end = total - v.pad_begin;
  }
  return form;
}

Value* unsettled_pads(GradientContext& g, ConvForm& form, Value* x, Value* kernel) {
  if (pads_are_known(g.node, form, *x->type.shape)) return nullptr;
  for (rules::Window& v : form.windows) v.pad_begin = v.pad_end = 0;
  return same_pads(g, form, x, kernel);
}

Value* cropped(GradientContext& g, Value* padded, Value* pads, Value* like) {
  return g.reshape_like(g.op("Pad", {padded, g.neg(pads)}), like);
}

Value* conv_input_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w) {
  if (is_empty(x) || is_empty(dy) || is_empty(w)) return g.zeros_like(x);
  AttributeList attributes{{"group", form.group},
                           {"strides", per_axis(form.windows, [](const auto& v) { return v.stride; })},
                           {"dilations", per_axis(form.windows, [](const auto& v) { return v.dilation; })}};
  g.rank(dy);
  g.rank(x);
  std::optional<Ints> rest = left_over(form, *x->type.shape, *dy->type.shape);
  if (rest && std::all_of(rest->begin(), rest->end(), [](auto r) { return r >= 0; })) {
    attributes.emplace_back("pads", pads_of(form.windows));
    if (std::any_of(rest->begin(), rest->end(), [](auto r) { return r != 0; })) {
      attributes.emplace_back("output_padding", *rest);
    }
    return g.reshape_like(g.op("ConvTranspose", {dy, w}, attributes), x);
  }
  std::vector<rules::Window> whole = form.windows;
  for (rules::Window& v : whole) v.pad_end = 0;
  attributes.emplace_back("pads", pads_of(whole));
  Value* reached = g.op("ConvTranspose", {dy, w}, attributes);
  Value* missing = g.sub(g.op("Shape", {x}), g.op("Shape", {reached}));  // negative where windows reach over the end
  Value* none = g.b.ints(Ints(form.windows.size() + 2, 0));
  return g.reshape_like(g.op("Pad", {reached, g.concat({none, missing}, 0)}), x);
}

Value* conv_weight_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w) {
  if (is_empty(x) || is_empty(dy) || is_empty(w)) return g.zeros_like(w);
  const std::size_t spatial = form.windows.size();
  Value* image = regrouped(g, x, form.group, true);
  Value* kernel = regrouped(g, dy, form.group, false);
  Value* full = g.op("Conv", {image, kernel},
                     {{"group", form.group},
                      {"strides", per_axis(form.windows, [](const auto& v) { return v.dilation; })},
                      {"dilations", per_axis(form.windows, [](const auto& v) { return v.stride; })},
                      {"pads", pads_of(form.windows)}});
  Ints sizes = per_axis(form.windows, [](const auto& v) { return v.kernel; });
  bool fits = full->type.shape.has_value();
  for (std::size_t i = 0; fits && i < spatial; ++i) fits = sizes[i] != 0 && (*full->type.shape)[i + 2].is(sizes[i]);
  if (!fits) {
    Value* ends = g.slice(g.shape_of(w), 2, static_cast<std::int64_t>(spatial) + 2, 0);
    full = g.op("Slice", {full, g.b.ints(Ints(spatial, 0)), ends, g.b.ints(spatial_axes(spatial))});
  }
  return g.reshape_like(g.transpose(full, swapped(spatial)), w);
}

Value* conv_forward(GradientContext& g, const ConvForm& form, Value* x, Value* w, Value* like) {
  if (is_empty(x) || is_empty(w)) return g.zeros_like(like);
  Value* y = g.op("Conv", {x, w},
                  {{"group", form.group},
                   {"strides", per_axis(form.windows, [](const auto& v) { return v.stride; })},
                   {"dilations", per_axis(form.windows, [](const auto& v) { return v.dilation; })},
                   {"pads", pads_of(form.windows)}});
  if (y->type.shape && *y->type.shape == *like->type.shape) return y;
  const std::size_t spatial = form.windows.size();  // padding at the end may have made room for more windows
  Value* ends = g.slice(g.shape_of(like), 2, static_cast<std::int64_t>(spatial) + 2, 0);
  y = g.op("Slice", {y, g.b.ints(Ints(spatial, 0)), ends, g.b.ints(spatial_axes(spatial))});
  return g.reshape_like(y, like);
}

Value* conv_bias_gradient(GradientContext& g, Value* dy) {
  Ints axes{0};
  for (std::int64_t axis : spatial_axes(static_cast<std::size_t>(g.rank(dy)) - 2)) axes.push_back(axis);
  return g.sum(dy, std::move(axes), false);
}

void conv_gradient(GradientContext& g) {
  Value* x = g.x(0);
  Value* w = g.x(1);
  const std::int64_t rank = g.rank(w);
  ConvForm form = window_form(g, x, std::span(*w->type.shape).subspan(2));
  Value* pads = unsettled_pads(g, form, x, g.slice(g.shape_of(w), 2, rank, 0));
  if (pads != nullptr) x = g.op("Pad", {x, pads});
  if (g.wants(g.x(0))) {
    Value* dx = conv_input_gradient(g, form, g.dy(), x, w);
    g.set(0, pads == nullptr ? dx : cropped(g, dx, pads, g.x(0)));
  }
  if (g.wants(1)) g.set(1, conv_weight_gradient(g, form, g.dy(), x, w));
  if (g.wants(2)) g.set(2, conv_bias_gradient(g, g.dy()));
}

void conv_fused_gradient(GradientContext& g) { set_by_fused(g, "ConvGrad", {g.dy(), g.x(0), g.x(1)}, 3); }

}  // namespace backpass
