// Resize: resamples a tensor along its axes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/image/resample.hpp"
#include "ops/image/resize_rule.hpp"
#include "ops/scalar_input.hpp"
#include "support/half.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kRoi, kScales, kSizes };

template <class E>
struct Choice {
  std::string_view name;
  E value;
};

template <class E, std::size_t N>
E choose(const Node& node, std::string_view key, const Choice<E> (&choices)[N]) {
  const std::string given = node.attr_string(key, choices[0].name);
  for (const Choice<E>& choice : choices)
    if (choice.name == given) return choice.value;
  std::string names;
  for (const Choice<E>& choice : choices) names += (names.empty() ? "" : ", ") + std::string(choice.name);
  fail(node.label(), " attribute '", key, "': got ", printable(given), ", expected one of ", names);
}

constexpr Choice<ResampleMode> kModes[] = {
    {"nearest", ResampleMode::nearest}, {"linear", ResampleMode::linear}, {"cubic", ResampleMode::cubic}};
constexpr Choice<Coordinates> kCoordinates[] = {{"half_pixel", Coordinates::half_pixel},
                                                {"half_pixel_symmetric", Coordinates::half_pixel_symmetric},
                                                {"pytorch_half_pixel", Coordinates::pytorch_half_pixel},
                                                {"align_corners", Coordinates::align_corners},
                                                {"asymmetric", Coordinates::asymmetric},
                                                {"tf_crop_and_resize", Coordinates::tf_crop_and_resize},
                                                {"tf_half_pixel_for_nn", Coordinates::tf_half_pixel_for_nn}};
constexpr Choice<Rounding> kRoundings[] = {{"round_prefer_floor", Rounding::prefer_floor},
                                           {"round_prefer_ceil", Rounding::prefer_ceil},
                                           {"floor", Rounding::floor},
                                           {"ceil", Rounding::ceil}};
enum class Policy : std::uint8_t { stretch, not_larger, not_smaller };
constexpr Choice<Policy> kPolicies[] = {
    {"stretch", Policy::stretch}, {"not_larger", Policy::not_larger}, {"not_smaller", Policy::not_smaller}};

ResampleOptions options_of(const Node& node) {
  ResampleOptions o;
  o.mode = choose(node, "mode", kModes);
  o.coordinates = choose(node, "coordinate_transformation_mode", kCoordinates);
  o.rounding = choose(node, "nearest_mode", kRoundings);
  o.cubic_a = node.attr_float("cubic_coeff_a", -0.75F);
  o.antialias = node.attr_int("antialias", 0) != 0;
  o.exclude_outside = node.attr_int("exclude_outside", 0) != 0;
  o.extrapolation = node.attr_float("extrapolation_value", 0);
  if (o.antialias && o.mode == ResampleMode::nearest)
    fail(node.label(), " attribute 'antialias': got 1 with mode nearest, expected mode linear or cubic");
  return o;
}

/// The axes that roi, scales and sizes speak of.
template <class Context>
std::vector<std::size_t> axes_of(const Context& c, std::size_t rank) {
  std::vector<std::size_t> axes;
  if (!c.node.has_attribute("axes")) {
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(i);
    return axes;
  }
  for (std::int64_t axis : c.node.attr_ints("axes")) {
    const std::size_t found = c.axis(axis, rank);
    c.require(std::find(axes.begin(), axes.end(), found) == axes.end(), "attribute 'axes': got axis ", axis, " twice");
    axes.push_back(found);
  }
  return axes;
}

// An input may be present and empty, which also says that it is not given.
bool is_given(const InferContext& c, std::size_t input) {
  return c.has_input(input) && !(c.knows_shape(input) && c.rank(input) == 1 && c.shape(input)[0].is(0));
}

bool is_given(const PrepareContext& c, std::size_t input) { return c.has_input(input) && c.in(input).size() > 0; }

std::int64_t rounded_half_up(double x) { return static_cast<std::int64_t>(std::floor(x + 0.5)); }

// The extent after scaling, in single precision as the standard's own rule computes it.
Dim scaled(InferContext& c, std::size_t axis, const Dim& extent, double scale) {
  c.require(scale > 0 && std::isfinite(scale), "scales: got ", scale, ", expected positive numbers, not infinite");
  if (extent.is_known()) {
    const float out = std::floor(static_cast<float>(extent.value()) * static_cast<float>(scale));
    c.require(out < 0x1p62F, "scales: got ", scale, " for extent ", shown(extent), ", which is too large");
    return static_cast<std::int64_t>(out);
  }
  if (scale == std::floor(scale) && scale < 0x1p31) return extent * Dim(static_cast<std::int64_t>(scale));
  if (1 / scale == std::floor(1 / scale) && 1 / scale < 0x1p31)
    return floor_div(extent, Dim(static_cast<std::int64_t>(1 / scale)));
  return c.data_dependent(concat("resized", axis));
}

// With keep_aspect_ratio_policy, one scale fits all axes.
std::optional<double> common_scale(const Node& node, const std::vector<std::size_t>& axes, const Dims& in,
                                   const std::vector<std::int64_t>& sizes) {
  const Policy policy = choose(node, "keep_aspect_ratio_policy", kPolicies);
  if (policy == Policy::stretch || axes.empty()) return std::nullopt;
  std::optional<double> scale;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const double own = static_cast<double>(sizes[i]) / static_cast<double>(std::max<std::int64_t>(in[axes[i]], 1));
    if (!scale) scale = own;
    scale = policy == Policy::not_larger ? std::min(*scale, own) : std::max(*scale, own);
  }
  return scale;
}

Shape sized(InferContext& c, Shape shape, const std::vector<std::size_t>& axes) {
  const std::vector<Dim> sizes = list_input(c, kSizes, "sizes", axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i)
    c.require(!sizes[i].is_known() || sizes[i].value() >= 0, "sizes: got ", shown(sizes[i]), ", expected 0 or more");
  if (choose(c.node, "keep_aspect_ratio_policy", kPolicies) == Policy::stretch) {
    for (std::size_t i = 0; i < axes.size(); ++i) shape[axes[i]] = sizes[i];
    return shape;
  }
  if (!is_known(shape) || !is_known(sizes)) {
    for (std::size_t axis : axes) shape[axis] = c.data_dependent(concat("resized", axis));
    return shape;
  }
  if (auto scale = common_scale(c.node, axes, to_dims(shape), to_dims(sizes)))
    for (std::size_t axis : axes) shape[axis] = rounded_half_up(*scale * static_cast<double>(shape[axis].value()));
  return shape;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kX));
  const ResampleOptions options = options_of(c.node);
  choose(c.node, "keep_aspect_ratio_policy", kPolicies);  // said now, even where it does not matter
  if (options.mode != ResampleMode::nearest && !types::numbers.has(c.dtype(kX)))
    fail<Unsupported>(c.node.label(), " mode ", c.node.attr_string("mode", ""), " for ", name_of(c.dtype(kX)),
                      ": expected a number type");
  const Shape& in = c.shape(kX);
  const std::vector<std::size_t> axes = axes_of(c, in.size());
  c.require(is_given(c, kScales) != is_given(c, kSizes), "scales and sizes: expected exactly one of them");
  if (options.coordinates == Coordinates::tf_crop_and_resize)
    c.require(is_given(c, kRoi), "roi: missing, expected with tf_crop_and_resize");
  Shape out = in;
  if (is_given(c, kSizes)) {
    out = sized(c, in, axes);
  } else {
    c.require(is_float(c.dtype(kScales)), "element type of scales: got ", name_of(c.dtype(kScales)),
              ", expected float32");
    const Tensor* scales = c.constant(kScales);
    if (scales == nullptr) {
      for (std::size_t axis : axes) out[axis] = c.data_dependent(concat("resized", axis));
      return c.set_shape(0, std::move(out));
    }
    const std::vector<double> values = scales->to_doubles();
    c.require(values.size() == axes.size(), "scales: got ", values.size(), " values, expected ", axes.size());
    for (std::size_t i = 0; i < axes.size(); ++i) out[axes[i]] = scaled(c, axes[i], in[axes[i]], values[i]);
  }
  for (std::size_t axis : axes)
    c.require(!in[axis].is(0) || !out[axis].is_known() || out[axis].is(0), "extent of axis ", axis, ": got ",
              shown(out[axis]), " from 0 elements");
  c.set_shape(0, std::move(out));
}

// Lengths and scales of all axes in `axes`, without the region of interest.
std::vector<ResampleAxis> axis_lengths(const PrepareContext& c, const std::vector<std::size_t>& axes) {
  const Dims& in = c.in(kX).dims;
  const Dims& out = c.out(0).dims;
  std::vector<double> scales;
  if (is_given(c, kScales)) {
    c.require(c.in(kScales).constant != nullptr, "scales: expected values known before the kernel runs");
    scales = c.in(kScales).constant->to_doubles();
  } else {
    Dims sizes;
    for (std::size_t axis : axes) sizes.push_back(out[axis]);
    if (c.in(kSizes).constant != nullptr) sizes = c.in(kSizes).constant->to_ints();
    if (auto scale = common_scale(c.node, axes, in, sizes)) scales.assign(axes.size(), *scale);
  }
  std::vector<ResampleAxis> result;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    ResampleAxis axis;
    axis.in = in[axes[i]], axis.out = out[axes[i]];
    const auto length = static_cast<double>(axis.in);
    axis.scale = scales.empty() ? static_cast<double>(axis.out) / length : scales[i];
    axis.length = scales.empty() ? static_cast<double>(axis.out) : axis.scale * length;
    result.push_back(axis);
  }
  return result;
}

// The axes where something happens, in the order of the tensor. `roi` holds starts, then ends.
Resampling plan(const ResampleOptions& options, const Dims& in, const Dims& out, const std::vector<std::size_t>& axes,
                std::vector<ResampleAxis> lengths, const std::vector<double>& roi) {
  Resampling r{in, out, {}, options.extrapolation};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    ResampleAxis& axis = lengths[i];
    if (options.coordinates == Coordinates::tf_crop_and_resize)
      axis.roi_begin = roi[i], axis.roi_end = roi[axes.size() + i];
    const bool whole = axis.roi_begin == 0 && axis.roi_end == 1;
    if (axis.in == axis.out && axis.scale == 1 && whole) continue;
    r.axes.push_back(make_taps(options, axis, axes[i]));
  }
  std::sort(r.axes.begin(), r.axes.end(), [](const AxisTaps& a, const AxisTaps& b) { return a.axis < b.axis; });
  return r;
}

template <class T>
T element_of(DType dtype, double value) {
  T result{};
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, Bytes16>) {
    visit_numeric(dtype, [&]<class E>() {
      if constexpr (sizeof(E) == sizeof(T)) {
        E element = std::is_same_v<E, Half> || std::is_same_v<E, BFloat16> ? E(static_cast<float>(value))
                                                                           : static_cast<E>(value);
        std::memcpy(&result, &element, sizeof(T));
      }
    });
  }
  return result;
}

void run(const Resampling& r, ResampleMode mode, DType dtype, const KernelArgs& args) {
  const std::int64_t count = element_count(r.out);
  if (count == 0) return;
  if (r.axes.empty())
    return visit_storage(dtype, [&]<class T>() { std::copy_n(args.in<T>(kX), count, args.out<T>(0)); });
  if (mode == ResampleMode::nearest) {
    visit_storage(dtype, [&]<class T>() {
      const T fill = r.extrapolation == 0 ? T{} : element_of<T>(dtype, r.extrapolation);
      resample_nearest<T>(r, args.in<T>(kX), args.out<T>(0), fill);
    });
  } else {
    visit_real_or_integer(dtype, [&]<class T>() { resample_weighted<T>(r, args.in<T>(kX), args.out<T>(0)); });
  }
}

std::vector<double> roi_values(const std::string& label, const void* data, const TensorInfo& info, std::size_t axes) {
  std::vector<double> values = Tensor(info.dtype, info.dims, data, nullptr).to_doubles();
  if (values.size() != 2 * axes) fail(label, " roi: got ", values.size(), " values, expected ", 2 * axes);
  return values;
}

Kernel prepare(PrepareContext& c) {
  const ResampleOptions options = options_of(c.node);
  const TensorInfo& x = c.in(kX);
  const std::vector<std::size_t> axes = axes_of(c, x.dims.size());
  const std::vector<ResampleAxis> lengths = axis_lengths(c, axes);
  const ResampleMode mode = options.mode;
  const DType dtype = x.dtype;
  const bool crops = options.coordinates == Coordinates::tf_crop_and_resize;
  const Dims in = x.dims;
  const Dims out = c.out(0).dims;
  const std::string label = c.node.label();
  if (crops && c.in(kRoi).constant == nullptr) {
    return [=, info = c.in(kRoi)](const KernelArgs& args) {
      const std::vector<double> roi = roi_values(label, args.inputs[kRoi], info, axes.size());
      run(plan(options, in, out, axes, lengths, roi), mode, dtype, args);
    };
  }
  std::vector<double> roi;
  if (crops) roi = roi_values(label, c.in(kRoi).constant->data(), c.in(kRoi), axes.size());
  return [r = plan(options, in, out, axes, lengths, roi), mode, dtype](const KernelArgs& args) {
    run(r, mode, dtype, args);
  };
}

const Register resize{{.name = "Resize",
                       .since = 19,
                       .doc = "Resamples a tensor along its axes: nearest, linear or cubic.",
                       .inputs = {1, 4},
                       .types = types::movable,
                       .infer = infer,
                       .prepare = prepare,
                       .gradient = resize_gradient,
                       .half_through_float = true}};

// Before opset 11 there were only X and scales, and one way to find a source position.
void lift_before_11(Builder& b, Node& node) {
  b.graph.set_inputs(node, {node.input(0), nullptr, node.input(1)});
  node.attributes.insert_or_assign("coordinate_transformation_mode", std::string("asymmetric"));
  node.attributes.insert_or_assign("nearest_mode", std::string("floor"));
}
const RegisterAdapter resize_11{{.op = "Resize", .below = 11, .lift = lift_before_11}};

}  // namespace
}  // namespace backpass
