// Pad and CenterCropPad: elements added around a tensor, or cut off it.
#include <algorithm>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/movement/pad_kernel.hpp"
#include "ops/movement/pad_rule.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

using kernels::PadMode;

PadMode mode_of(const Node& node) {
  std::string mode = node.attr_string("mode", "constant");
  if (mode == "constant") return PadMode::constant;
  if (mode == "reflect") return PadMode::reflect;
  if (mode == "edge") return PadMode::edge;
  if (mode == "wrap") return PadMode::wrap;
  fail(node.label(), " mode: got ", printable(mode), ", expected constant, reflect, edge or wrap");
}

/// Number of elements kept of an axis before any are made up.
std::int64_t kept(std::int64_t extent, std::int64_t begin, std::int64_t end) {
  auto removed = [extent](std::int64_t pad) { return std::clamp<std::int64_t>(pad, -extent - 1, 0); };
  return extent + removed(begin) + removed(end);
}

void check_axis(const InferContext& c, PadMode mode, std::size_t axis, const Dim& extent, const Dim& begin,
                const Dim& end) {
  if (!extent.is_known() || !begin.is_known() || !end.is_known()) return;
  std::int64_t rest = kept(extent.value(), begin.value(), end.value());
  c.require(rest >= 0, "pads: got ", shown(begin), " and ", shown(end), ", expected to keep some of the ",
            shown(extent), " elements along axis ", axis);
  bool grows = begin.value() > 0 || end.value() > 0;
  c.require(mode == PadMode::constant || rest > 0 || !grows, "pads: mode ", c.node.attr_string("mode", ""),
            " has no element to repeat along axis ", axis);
}

std::optional<std::vector<std::int64_t>> axes_of(const InferContext& c, std::size_t input, std::size_t rank) {
  if (c.has_input(input)) return movement::numbers(movement::index_list(c, input, "axes"));
  std::vector<std::int64_t> all(rank);
  for (std::size_t i = 0; i < rank; ++i) all[i] = static_cast<std::int64_t>(i);
  return all;
}

void infer_pad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  PadMode mode = mode_of(c.node);
  c.require(c.dtype(1) == DType::int64, "pads: got ", name_of(c.dtype(1)), ", expected int64");
  if (c.has_input(2)) movement::require_same_dtype(c, 0, 2);
  if (c.has_input(2) && c.knows_shape(2)) {
    Dim count = product(c.shape(2));
    c.require(count.is(1) || !count.is_known(), "constant_value: got ", shown(count), " elements, expected one");
  }
  if (c.has_input(3)) movement::require_index(c, 3);
  Shape out = c.shape(0);
  auto axes = axes_of(c, 3, out.size());
  auto pads = movement::index_list(c, 1, "pads");
  if (!axes || !pads) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = c.data_dependent(concat("pad", i));
    return c.set_shape(0, std::move(out));
  }
  c.require(pads->size() == 2 * axes->size(), "pads: got ", pads->size(), " numbers, expected ", 2 * axes->size());
  std::vector<bool> seen(out.size(), false);
  for (std::size_t i = 0; i < axes->size(); ++i) {
    std::size_t axis = c.axis((*axes)[i], out.size());
    c.require(!seen[axis], "axes: got axis ", (*axes)[i], " twice, expected each at most once");
    seen[axis] = true;
    const Dim& begin = (*pads)[i];
    const Dim& end = (*pads)[i + axes->size()];
    check_axis(c, mode, axis, out[axis], begin, end);
    out[axis] = out[axis] + begin + end;
  }
  c.set_shape(0, std::move(out));
}

/// Elements added before each axis. Checked against the planned extents, since the numbers may come from memory.
Dims begins_of(const std::string& label, const Dims& in, const Dims& out, const std::vector<std::int64_t>& pads,
               const std::vector<std::int64_t>& axes) {
  auto rank = static_cast<std::int64_t>(in.size());
  Dims begins(in.size(), 0);
  std::size_t count = pads.size() / 2;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t axis = i < axes.size() ? axes[i] : static_cast<std::int64_t>(i);
    if (axis < -rank || axis >= rank) fail(label, " axes: got ", axis, ", expected one in [", -rank, ", ", rank, ")");
    auto a = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    auto sum = static_cast<std::uint64_t>(in[a]) + static_cast<std::uint64_t>(pads[i]) +
               static_cast<std::uint64_t>(pads[i + count]);
    bool fits = sum == static_cast<std::uint64_t>(out[a]) && kept(in[a], pads[i], pads[i + count]) >= 0;
    if (!fits)
      fail(label, " pads: got ", pads[i], " and ", pads[i + count], " along axis ", a, " of ", to_string(in),
           ", expected to reach ", to_string(out));
    begins[a] = pads[i];
  }
  return begins;
}

Kernel prepare_pad_bytes(PrepareContext& c) {
  std::vector<TensorInfo> in = c.inputs;
  Dims out = c.out(0).dims;
  PadMode mode = mode_of(c.node);
  bool has_fill = c.has_input(2);
  bool has_axes = c.has_input(3);
  auto plan = [=, label = c.node.label()](const void* pads, const void* axes) {
    auto begins = begins_of(label, in[0].dims, out, movement::read_ints(DType::int64, pads, in[1].size()),
                            has_axes ? movement::read_ints(in[3].dtype, axes, in[3].size()) : Dims{});
    return kernels::PadCopy(in[0].dtype, in[0].dims, out, begins, mode);
  };
  if (in[1].constant != nullptr && (!has_axes || in[3].constant != nullptr)) {
    kernels::PadCopy copy = plan(in[1].constant->data(), has_axes ? in[3].constant->data() : nullptr);
    return [=](const KernelArgs& args) { copy(args.inputs[0], has_fill ? args.inputs[2] : nullptr, args.outputs[0]); };
  }
  return [=](const KernelArgs& args) {
    kernels::PadCopy copy = plan(args.inputs[1], has_axes ? args.inputs[3] : nullptr);
    copy(args.inputs[0], has_fill ? args.inputs[2] : nullptr, args.outputs[0]);
  };
}

Kernel prepare_pad(PrepareContext& c) { return movement::through_bytes(c, prepare_pad_bytes); }

void infer_crop(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  Shape out = c.shape(0);
  std::vector<std::int64_t> axes(out.size());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<std::int64_t>(i);
  axes = c.node.attr_ints("axes", axes);
  if (c.knows_shape(1) && c.rank(1) == 1) {
    const Dim& count = c.shape(1)[0];
    c.require(!count.is_known() || count.is(std::ssize(axes)), "shape: got ", shown(count), " extents, expected ",
              axes.size(), ", one per axis");
  }
  auto target = movement::index_list(c, 1, "shape");
  c.require(!target || target->size() == axes.size(), "shape: got ", target ? target->size() : 0, " extents for ",
            axes.size(), " axes");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    Dim extent = target ? (*target)[i] : c.data_dependent(concat("crop", i));
    c.require(!extent.is_known() || extent.value() >= 0, "shape: got ", shown(extent), ", expected none below 0");
    out[c.axis(axes[i], out.size())] = extent;
  }
  c.set_shape(0, std::move(out));
}

Kernel prepare_crop(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  const Dims& out = c.out(0).dims;
  Dims begins(in.size(), 0);
  for (std::size_t i = 0; i < in.size(); ++i) {
    begins[i] = out[i] >= in[i] ? (out[i] - in[i]) / 2 : -((in[i] - out[i]) / 2);
  }
  kernels::PadCopy copy(c.in(0).dtype, in, out, begins, PadMode::constant);
  return [copy](const KernelArgs& args) { copy(args.inputs[0], nullptr, args.outputs[0]); };
}

const Register pad{{.name = "Pad",
                    .since = 25,
                    .doc = "Elements added around a tensor (constant, reflected, edge or wrapped), or cut off it.",
                    .inputs = {2, 4},
                    .types = movement::any_type,
                    .infer = infer_pad,
                    .prepare = prepare_pad,
                    .gradient = pad_gradient}};

const Register center_crop_pad{{.name = "CenterCropPad",
                                .since = 18,
                                .doc = "The tensor cropped or padded with zeros to the given extents, centred.",
                                .inputs = {2, 2},
                                .types = types::movable,
                                .infer = infer_crop,
                                .prepare = prepare_crop,
                                .gradient = center_crop_pad_gradient}};

/// Pads and the value were attributes.
void lift_11(Builder& b, Node& node) {
  b.graph.set_inputs(node, {node.input(0)});
  movement::ints_attribute_to_input(b, node, "pads", 1);
  float value = node.attr_float("value", 0);
  if (value != 0) b.graph.set_input(node, 2, b.scalar(value, node.inputs[0]));
  node.attributes.erase("value");
}
const RegisterAdapter pad_11{{.op = "Pad", .below = 11, .lift = lift_11}};

}  // namespace
}  // namespace backpass
