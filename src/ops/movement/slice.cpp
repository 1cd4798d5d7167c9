// Slice, and SliceGrad: every step-th element of [start, end) along some axes, and back into zeros.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "graph/op.hpp"
#include "graph/partial_read.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/movement/slice_rule.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kFarEnd = std::numeric_limits<std::int32_t>::max();  // "to the end", as exporters write it

struct Selection {
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
};

/// The numpy rule along one axis.
Selection select(std::int64_t extent, std::int64_t start, std::int64_t end, std::int64_t step) {
  std::int64_t low = step > 0 ? 0 : -1;
  std::int64_t high = step > 0 ? extent : extent - 1;
  auto wrap = [&](std::int64_t i) { return std::clamp(i < 0 ? std::max(i, -extent - 1) + extent : i, low, high); };
  start = std::max<std::int64_t>(wrap(start), extent == 0 ? low : 0);
  end = wrap(end);
  if (step < 0 && end < 0) end = -1;
  std::int64_t distance = step > 0 ? end - start : start - end;
  if (distance <= 0) return {0, 0, 1};
  // |step| beyond the extent selects one element: clamped so that the arithmetic cannot overflow.
  std::int64_t stride = step > 0 ? std::min(step, extent) : std::min(-std::max(step, -extent), extent);
  return {start, (distance + stride - 1) / stride, step > 0 ? stride : -stride};
}

/// A bound of which is known from where it counts: `at` from the front or, where negative, from the end.
struct Bound {
  Dim at;
  bool from_end = false;
};

/// nullopt when the sign depends on what the symbols stand for. A bound of extent - 1 is -1 only where nothing is
/// selected anyway, as by 0.
std::optional<Bound> placed(const Dim& extent, const Dim& bound) {
  if (bound.is_known() && bound.value() >= kFarEnd) return Bound{extent};
  if (bound.is_known() && bound.value() <= -kFarEnd) return Bound{0};
  if (surely_at_least(bound, 0)) return Bound{bound};
  if (surely_negative(bound)) return Bound{bound, true};
  if (surely_at_least(bound, -1) && surely_at_most(extent - 1, bound)) return Bound{max(bound, 0)};
  return std::nullopt;
}

/// The numpy rule with symbols; nullopt when it cannot be told.
std::optional<Dim> symbolic_count(const Dim& extent, const Dim& start, const Dim& end, std::int64_t step) {
  if (step < 0) {
    bool whole =
        start.is_known() && (start.is(-1) || start.value() >= kFarEnd) && end.is_known() && end.value() <= -kFarEnd;
    return whole ? std::optional(ceil_div(extent, -step)) : std::nullopt;
  }
  auto from = placed(extent, start);
  auto to = placed(extent, end);
  if (!from || !to) return std::nullopt;
  const Dim last = to->from_end ? max(extent + to->at, 0) : min(to->at, extent);
  const Dim length = from->from_end ? min(last, last - extent - from->at) : last - from->at;
  return ceil_div(max(length, 0), step);
}

/// Inputs of a slice: where its starts, ends, axes and steps are.
struct Inputs {
  std::size_t starts;
  std::size_t ends;
  std::size_t axes;
  std::size_t steps;
};
constexpr Inputs kSlice{1, 2, 3, 4};
constexpr Inputs kSliceGrad{2, 3, 4, 5};

/// Bounds along some axes, as far as they are known.
struct Bounds {
  std::vector<std::size_t> axes;
  std::optional<std::vector<Dim>> starts;
  std::optional<std::vector<Dim>> ends;
  std::optional<std::vector<std::int64_t>> steps;
};

/// nullopt when not even the axes are known.
std::optional<Bounds> read_bounds(const InferContext& c, std::size_t rank) {
  const Shape& length = c.shape(kSlice.starts);
  c.require(length.size() == 1, "starts: got rank ", length.size(), ", expected a 1-D tensor");
  if (!length[0].is_known()) return std::nullopt;
  auto count = static_cast<std::size_t>(length[0].value());
  c.require(count <= rank, "starts: got ", count, " numbers for a tensor of rank ", rank);
  std::vector<std::int64_t> leading(count);
  std::iota(leading.begin(), leading.end(), 0);
  std::optional<std::vector<std::int64_t>> axes = leading;
  if (c.has_input(kSlice.axes)) axes = movement::numbers(movement::index_list(c, kSlice.axes, "axes"));
  if (!axes) return std::nullopt;
  Bounds b{{},
           movement::index_list(c, kSlice.starts, "starts"),
           movement::index_list(c, kSlice.ends, "ends"),
           std::vector<std::int64_t>(count, 1)};
  if (c.has_input(kSlice.steps)) b.steps = movement::numbers(movement::index_list(c, kSlice.steps, "steps"));
  auto check = [&](const auto& list, const char* what) {
    c.require(!list || list->size() == count, what, ": got ", list ? list->size() : 0, " numbers for ", count,
              " starts");
  };
  check(axes, "axes");
  check(b.starts, "starts");
  check(b.ends, "ends");
  check(b.steps, "steps");
  for (std::int64_t a : *axes) {
    b.axes.push_back(c.axis(a, rank));
    c.require(std::count(b.axes.begin(), b.axes.end(), b.axes.back()) == 1, "axes: got axis ", a,
              " twice, expected each at most once");
  }
  return b;
}

void keep_ints(InferContext& c, std::int64_t start, std::int64_t end, std::int64_t step) {
  auto values = movement::ints_of_rank(c, 0, 1);
  if (!values) return;
  Selection s = select(std::ssize(*values), start, end, step);
  std::vector<Dim> kept;
  for (std::int64_t i = 0; i < s.count; ++i) kept.push_back((*values)[static_cast<std::size_t>(s.start + i * s.step)]);
  movement::set_ints(c, 0, std::move(kept));
}

void infer_slice(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (c.has_input(i)) movement::require_index(c, i);
  }
  Shape out = c.shape(0);
  auto unknown = [&](std::size_t axis) { return c.data_dependent(concat("slice", axis)); };
  std::optional<Bounds> b = read_bounds(c, out.size());
  if (!b) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = unknown(i);
    return c.set_shape(0, std::move(out));
  }
  bool known = b->starts && b->ends && b->steps;
  for (std::size_t i = 0; i < b->axes.size(); ++i) {
    std::size_t axis = b->axes[i];
    if (!known) {
      out[axis] = unknown(axis);
      continue;
    }
    const Dim& start = (*b->starts)[i];
    const Dim& end = (*b->ends)[i];
    std::int64_t step = (*b->steps)[i];
    c.require(step != 0, "steps: got 0, expected a step that moves");
    if (out[axis].is_known() && start.is_known() && end.is_known()) {
      if (out.size() == 1) keep_ints(c, start.value(), end.value(), step);
      out[axis] = select(out[axis].value(), start.value(), end.value(), step).count;
    } else {
      out[axis] = symbolic_count(out[axis], start, end, step).value_or(unknown(axis));
    }
  }
  c.set_shape(0, std::move(out));
}

void infer_slice_grad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_shape(0, c.ints(1));
}

/// Where the slice lies in the whole tensor: its first element and the distance between neighbours, in elements.
struct Window {
  std::int64_t offset = 0;
  Dims strides;
};

/// Reads the bounds from memory and checks them against the extents that were planned.
Window window(const std::string& label, const Dims& whole, const Dims& part, Inputs at,
              const std::vector<TensorInfo>& infos, const void* const* data) {
  auto read = [&](std::size_t i) { return movement::read_ints(infos[i].dtype, data[i], infos[i].size()); };
  auto given = [&](std::size_t i) { return i < infos.size() && infos[i].present; };
  std::vector<std::int64_t> starts = read(at.starts);
  std::vector<std::int64_t> ends = read(at.ends);
  std::vector<std::int64_t> axes = given(at.axes) ? read(at.axes) : std::vector<std::int64_t>{};
  std::vector<std::int64_t> steps = given(at.steps) ? read(at.steps) : std::vector<std::int64_t>{};
  auto rank = static_cast<std::int64_t>(whole.size());
  Window w{0, strides_of(whole)};
  Dims extents = whole;
  Dims own = w.strides;
  std::size_t count = std::min(starts.size(), ends.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t axis = axes.empty() ? static_cast<std::int64_t>(i) : (i < axes.size() ? axes[i] : rank);
    std::int64_t step = steps.empty() ? 1 : (i < steps.size() ? steps[i] : 0);
    if (axis < -rank || axis >= rank) fail(label, " axes: got ", axis, ", expected one in [", -rank, ", ", rank, ")");
    if (step == 0) fail(label, " steps: got 0, expected a step that moves");
    auto a = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    Selection s = select(whole[a], starts[i], ends[i], step);
    extents[a] = s.count;
    w.offset += s.start * own[a];
    w.strides[a] = s.step * own[a];
  }
  if (extents != part) fail(label, " selects ", to_string(extents), ", expected ", to_string(part));
  return w;
}

/// Contents of all bound inputs, if they do not change; else empty.
std::vector<const void*> constant_bounds(const PrepareContext& c, Inputs at) {
  std::vector<const void*> data(c.inputs.size(), nullptr);
  for (std::size_t i = at.starts; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].present) continue;
    if (c.inputs[i].constant == nullptr) return {};
    data[i] = c.inputs[i].constant->data();
  }
  return data;
}

Kernel prepare_slice(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::string label = c.node.label();
  std::vector<TensorInfo> infos = c.inputs;
  Dims out = c.out(0).dims;
  auto run = [=](const Window& w, const kernels::StridedCopy& copy, const KernelArgs& args) {
    copy(args.in<std::byte>(0) + w.offset * static_cast<std::int64_t>(byte_size(dtype, 1)), args.outputs[0]);
  };
  if (auto data = constant_bounds(c, kSlice); !data.empty()) {
    Window w = window(label, c.in(0).dims, out, kSlice, infos, data.data());
    kernels::StridedCopy copy(dtype, out, w.strides, strides_of(out));
    return [=](const KernelArgs& args) { run(w, copy, args); };
  }
  return [=](const KernelArgs& args) {
    Window w = window(label, infos[0].dims, out, kSlice, infos, args.inputs);
    run(w, kernels::StridedCopy(dtype, out, w.strides, strides_of(out)), args);
  };
}

Kernel prepare_slice_grad(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::string label = c.node.label();
  std::vector<TensorInfo> infos = c.inputs;
  Dims whole = c.out(0).dims;
  return [=](const KernelArgs& args) {
    const Dims& part = infos[0].dims;
    Window w = window(label, whole, part, kSliceGrad, infos, args.inputs);
    std::memset(args.outputs[0], 0, byte_size(dtype, element_count(whole)));
    kernels::StridedCopy copy(dtype, part, strides_of(part), w.strides);
    copy(args.inputs[0], args.out<std::byte>(0) + w.offset * static_cast<std::int64_t>(byte_size(dtype, 1)));
  };
}

const Register slice{{.name = "Slice",
                      .since = 13,
                      .doc = "Every step-th element of [start, end) along the listed axes.",
                      .inputs = {3, 5},
                      .types = types::movable,
                      .infer = infer_slice,
                      .prepare = prepare_slice,
                      .gradient = slice_gradient,
                      .fused_gradient = slice_fused_gradient,
                      .is_one_pass = true}};
const RegisterPartialRead kPartOfSlice("Slice");

const Register slice_grad{{.name = "SliceGrad",
                           .domain = "com.microsoft",
                           .doc = "Zeros of the given shape with dY at the positions that Slice would select.",
                           .inputs = {4, 6},
                           .types = types::numbers | types::boolean,
                           .infer = infer_slice_grad,
                           .prepare = prepare_slice_grad}};

/// Bounds and axes were attributes; there were no steps.
void lift_10(Builder& b, Node& node) {
  movement::ints_attribute_to_input(b, node, "starts", 1);
  movement::ints_attribute_to_input(b, node, "ends", 2);
  movement::ints_attribute_to_input(b, node, "axes", 3);
}
const RegisterAdapter slice_10{{.op = "Slice", .below = 10, .lift = lift_10}};

}  // namespace
}  // namespace backpass
