// ConvTranspose: the gradient of a convolution with respect to its input, used forwards.
#include <algorithm>

#include "gradient/fused.hpp"
#include "graph/op.hpp"
#include "kernels/conv.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/convolution/conv_rule.hpp"
#include "ops/convolution/dnnl_conv.hpp"
#include "ops/convolution/dnnl_conv_grad.hpp"
#include "ops/flops.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

std::vector<std::int64_t> spatial_ints(const Node& node, std::string_view key, std::size_t count) {
  std::vector<std::int64_t> values = node.attr_ints(key);
  if (values.empty()) return values;
  // Some exporters state the whole shape.
  if (key == "output_shape" && values.size() == count + 2) values.erase(values.begin(), values.begin() + 2);
  if (values.size() != count) {
    fail(node.label(), " attribute ", key, " has ", values.size(), " values: expected ", count);
  }
  for (std::int64_t v : values) {
    if (v < 0) fail(node.label(), " attribute ", key, " holds ", v, ": expected no negative number");
  }
  return values;
}

struct Axis {
  Dim out;
  std::int64_t pad_begin = 0;  ///< valid once the input extent is a number
};

/// Output extent and leading padding along each spatial axis.
std::vector<Axis> output_axes(const Node& node, std::span<const std::int64_t> kernel, std::span<const Dim> in) {
  std::vector<rules::Window> windows = rules::windows(node, kernel, in);
  std::vector<std::int64_t> extra = spatial_ints(node, "output_padding", in.size());
  std::vector<std::int64_t> stated = spatial_ints(node, "output_shape", in.size());
  std::string mode = node.attr_string("auto_pad", "NOTSET");
  bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  std::vector<Axis> axes(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const rules::Window& w = windows[i];
    std::int64_t reach = w.dilation * (w.kernel - 1) + 1;
    Dim full = (in[i] - 1) * w.stride + (reach + (extra.empty() ? 0 : extra[i]));
    if (stated.empty() && !same) {
      axes[i] = {full - (w.pad_begin + w.pad_end), w.pad_begin};
      continue;
    }
    axes[i].out = stated.empty() ? in[i] * w.stride : Dim(stated[i]);
    if (!in[i].is_known()) continue;
    std::int64_t total = std::max<std::int64_t>(0, full.value() - axes[i].out.value());
    axes[i].pad_begin = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
  }
  return axes;
}

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "input and weights have different element types: got ", name_of(c.dtype(0)),
            " and ", name_of(c.dtype(1)));
  c.set_dtype(0, c.dtype(0));
  const Shape& x = c.shape(0);
  const Shape& w = c.shape(1);
  c.require(x.size() >= 3 && x.size() <= kMaxSpatialAxes + 2, "input is ", shown(x),
            ": expected [batch, channels, spatial...] with 1 to ", kMaxSpatialAxes, " spatial axes");
  c.require(w.size() == x.size(), "weights are ", shown(w), ": expected ", x.size(), " axes, as many as the input");
  std::int64_t group = c.node.attr_int("group", 1);
  c.require(group >= 1, "attribute group is ", group, ": expected a positive number");
  Dim channels = c.unify(x[1], w[0], "input channels against the first extent of the weights");
  c.require(!channels.is_known() || channels.value() % group == 0, "input has ", shown(channels),
            " channels: expected a multiple of group = ", group);
  Shape y{x[0], w[1] * group};
  check_conv_bias(c, 2, y[1]);
  if (!is_known(Shape(w.begin() + 2, w.end()))) {
    for (std::size_t i = 2; i < w.size(); ++i) y.push_back(c.data_dependent(concat("convolved", i)));
    return c.set_shape(0, std::move(y));
  }
  Dims weights(2, 1);
  for (std::size_t i = 2; i < w.size(); ++i) weights.push_back(w[i].value());
  for (const Axis& axis : output_axes(c.node, kernel_extents(c.node, weights), {x.begin() + 2, x.end()})) {
    c.require(!axis.out.is_known() || axis.out.value() >= 0, "output extent would be ", shown(axis.out),
              ": padding is larger than the output; use less");
    y.push_back(axis.out);
  }
  c.set_shape(0, std::move(y));
}

/// Sizes of the convolution that this one transposes: its input is our output.
ConvGeometry transposed_geometry(const PrepareContext& c, const Dims& x, const Dims& w, const Dims& y) {
  ConvGeometry g;
  g.batch = x[0];
  g.groups = c.node.attr_int("group", 1);
  g.in_channels = w[1];
  g.out_channels = w[0] / g.groups;
  g.in.assign(y.begin() + 2, y.end());
  g.out.assign(x.begin() + 2, x.end());
  g.kernel.assign(w.begin() + 2, w.end());
  for (const rules::Window& v : rules::windows(c.node, g.kernel, to_shape(g.out))) {
    g.stride.push_back(v.stride);
    g.dilation.push_back(v.dilation);
  }
  for (const Axis& axis : output_axes(c.node, g.kernel, to_shape(g.out))) g.pad_begin.push_back(axis.pad_begin);
  // What the windows do not reach at the end stays at the bias.
  for (std::size_t i = 0; i < g.in.size(); ++i) {
    g.pad_end.push_back((g.out[i] - 1) * g.stride[i] + g.dilation[i] * (g.kernel[i] - 1) + 1 - g.in[i] -
                        g.pad_begin[i]);
  }
  return g;
}

template <class T>
void add_bias(const ConvGeometry& g, const T* bias, T* y) {
  std::int64_t channels = g.groups * g.in_channels;
  std::int64_t size = g.in_size();
  parallel_for(g.batch * channels, grain_for(size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = i * size; j < (i + 1) * size; ++j) y[j] += bias[i % channels];
    }
  });
}

Kernel prepare(PrepareContext& c) {
  ConvGeometry g = transposed_geometry(c, c.in(0).dims, c.in(1).dims, c.out(0).dims);
  bool has_bias = c.has_input(2);
  bool is_float = c.in(0).dtype == DType::float32;
  if (auto library = is_float && g.in_channels >= 8 ? DnnlConvBackwardData::make(g) : nullptr) {
    std::size_t at = c.reserve(library->scratch_bytes());
    return [=](const KernelArgs& args) {
      library->run(args.in<float>(0), args.in<float>(1), args.out<float>(0), args.scratch + at);
      if (has_bias) add_bias(g, args.in<float>(2), args.out<float>(0));
    };
  }
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [g, has_bias](const KernelArgs& args) {
      convolve_backward_data<T>(g, args.in<T>(0), args.in<T>(1), has_bias ? args.in<T>(2) : nullptr, args.out<T>(0));
    };
  });
  return kernel;
}

/// What to put around dY so that windows over it give X again: [begins, ends] of every axis, from run-time extents.
Value* run_time_pads(GradientContext& g, const ConvForm& form) {
  const std::size_t spatial = form.windows.size();
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> dilations;
  for (const rules::Window& w : form.windows) {
    strides.push_back(w.stride);
    dilations.push_back(w.dilation);
  }
  std::vector<std::int64_t> extra = spatial_ints(g.node, "output_padding", spatial);
  extra.resize(spatial, 0);
  auto extents = [&](Value* v) { return g.slice(g.shape_of(v), 2, static_cast<std::int64_t>(spatial) + 2, 0); };
  Value* one = g.b.integer(1);
  Value* out = extents(g.dy());
  Value* reach = g.add(g.mul(g.sub(extents(g.x(1)), one), g.b.ints(dilations)), one);
  Value* full = g.add(g.mul(g.sub(extents(g.x(0)), one), g.b.ints(strides)), reach);
  Value* total = g.op("Max", {g.sub(g.add(full, g.b.ints(extra)), out), g.b.integer(0)});
  Value* half = g.div(total, g.b.integer(2));
  Value* begin = g.node.attr_string("auto_pad", "NOTSET") == "SAME_UPPER" ? half : g.sub(total, half);
  Value* none = g.b.ints({0, 0});
  return g.concat({none, begin, none, g.sub(g.sub(full, out), begin)}, 0);
}

/// Padding follows from the output's extents instead of being given.
bool pads_follow(const Node& node) {
  std::string mode = node.attr_string("auto_pad", "NOTSET");
  return mode == "SAME_UPPER" || mode == "SAME_LOWER" || !node.attr_ints("output_shape").empty();
}

/// The convolution of dY with the same weights gives dX; its weights' gradient is that of W.
void gradient(GradientContext& g) {
  Value* x = g.x(0);
  Value* w = g.x(1);
  Value* dy = g.dy();
  g.rank(w);
  ConvForm form = window_form(g, x, std::span(*w->type.shape).subspan(2));
  if (pads_follow(g.node)) {
    dy = g.op("Pad", {dy, run_time_pads(g, form)});
    for (rules::Window& v : form.windows) v.pad_begin = v.pad_end = 0;
  }
  if (g.wants(x)) g.set(0, conv_forward(g, form, dy, w, x));
  if (g.wants(w)) g.set(1, conv_weight_gradient(g, form, x, dy, w));
  if (g.wants(2)) g.set(2, conv_bias_gradient(g, g.dy()));
}

void fused_gradient(GradientContext& g) { set_by_fused(g, "ConvTransposeGrad", {g.dy(), g.x(0), g.x(1)}, 3); }

/// Every element of the input goes to all that its channel's weights reach.
Dim transposed_flops(const Value* x, const Value* weight) {
  return Dim(2) * flops::elements(x) * flops::per_channel(weight);
}

const Register conv_transpose{
    {.name = "ConvTranspose",
     .since = 22,
     .doc = "transposed convolution, with output_padding and output_shape",
     .inputs = {2, 3},
     .types = types::floats,
     .infer = infer,
     .prepare = prepare,
     .gradient = gradient,
     .fused_gradient = fused_gradient,
     .half_through_float = true,
     .flops = [](const Node& node) { return transposed_flops(node.inputs.at(0), node.inputs.at(1)); }}};

// ---- Gradient: inputs dY, X, W; outputs dX, dW, dB, each optional.

/// float32 by oneDNN where it has the case.
Kernel library_gradient(PrepareContext& c, const ConvGeometry& g) {
  bool has_dx = c.has_output(0);
  bool has_dw = c.has_output(1);
  bool has_db = c.has_output(2);
  bool is_empty = c.in(0).size() == 0 || c.in(1).size() == 0 || c.in(2).size() == 0;
  std::shared_ptr<DnnlConv> forward = has_dx && !is_empty ? DnnlConv::make(g, {}) : nullptr;
  auto weights = has_dw ? DnnlConvBackwardWeights::make(g, false) : nullptr;
  const std::size_t at = c.reserve(std::max(forward != nullptr ? forward->scratch_bytes() : 0,  // one after the other
                                            weights != nullptr ? weights->scratch_bytes() : 0));
  return [=](const KernelArgs& args) {
    const auto* dy = args.in<float>(0);
    const auto* x = args.in<float>(1);
    const auto* w = args.in<float>(2);
    if (forward != nullptr) {
      forward->run(dy, w, nullptr, args.out<float>(0), args.scratch + at);
    } else if (has_dx) {
      convolve<float>(g, dy, w, nullptr, args.out<float>(0));
    }
    if (weights != nullptr) {
      weights->run(dy, x, args.out<float>(1), nullptr, args.scratch + at);
    } else if (has_dw) {
      convolve_backward_weights<float>(g, dy, x, args.out<float>(1));
    }
    if (has_db) sum_channels<float>(g.batch, g.groups * g.in_channels, g.in_size(), dy, args.out<float>(2));
  };
}

Kernel prepare_gradient(PrepareContext& c) {
  ConvGeometry g = transposed_geometry(c, c.in(1).dims, c.in(2).dims, c.in(0).dims);
  if (c.in(0).dtype == DType::float32) return library_gradient(c, g);
  bool has_dx = c.has_output(0);
  bool has_dw = c.has_output(1);
  bool has_db = c.has_output(2);
  return [=](const KernelArgs& args) {
    const auto* dy = args.in<double>(0);
    if (has_dx) convolve<double>(g, dy, args.in<double>(2), nullptr, args.out<double>(0));
    if (has_dw) convolve_backward_weights<double>(g, dy, args.in<double>(1), args.out<double>(1));
    if (has_db) sum_channels<double>(g.batch, g.groups * g.in_channels, g.in_size(), dy, args.out<double>(2));
  };
}

void infer_gradient(InferContext& c) {
  infer_conv_gradient(c, c.shape(2).size() < 2 ? Dim(0) : c.shape(2)[1] * c.node.attr_int("group", 1));
}

const Register conv_transpose_grad{{.name = "ConvTransposeGrad",
                                    .domain = "com.microsoft",
                                    .since = 1,
                                    .doc = "gradients of ConvTranspose with respect to input, weights and bias",
                                    .inputs = {3, 3},
                                    .outputs = {1, 3},
                                    .types = types::floats,
                                    .infer = infer_gradient,
                                    .prepare = prepare_gradient,
                                    .half_through_float = true,
                                    .flops = [](const Node& node) {
                                      return flops::convolution_gradient(
                                          node, transposed_flops(node.inputs.at(1), node.inputs.at(2)));
                                    }}};

}  // namespace
}  // namespace backpass
