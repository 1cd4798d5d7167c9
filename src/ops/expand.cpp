// Expand and Tile: elements repeated along axes.
#include <algorithm>

#include "kernels/strided_copy.hpp"
#include "ops/movement.hpp"
#include "ops/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

/// Contents of a result of rank 0 or 1 made by repeating the contents of the input.
void repeat_ints(InferContext& c, const Shape& out) {
  auto values = c.maybe_ints(0);
  if (!values || out.size() > 1 || !is_known(out)) return;
  std::int64_t count = product(out).value();
  if (count > 1024 || (values->empty() && count > 0)) return;
  std::vector<Dim> repeated;
  for (std::int64_t i = 0; i < count; ++i) repeated.push_back((*values)[static_cast<std::size_t>(i) % values->size()]);
  movement::set_ints(c, 0, std::move(repeated));
}

void infer_expand(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  Shape out;
  if (auto target = c.maybe_ints(1)) {
    for (const Dim& d : *target) {
      c.require(!d.is_known() || d.value() >= 0, "shape: got extent ", shown(d), ", expected none below 0");
    }
    out = rules::broadcast(c, in, *target);
  } else {
    const Shape& length = c.shape(1);
    if (length.size() != 1 || !length[0].is_known()) throw NotKnownYet{};
    std::size_t rank = std::max(in.size(), static_cast<std::size_t>(length[0].value()));
    for (std::size_t i = 0; i < rank; ++i) out.push_back(c.data_dependent(concat("expand", i)));
  }
  repeat_ints(c, out);
  c.set_shape(0, std::move(out));
}

Kernel prepare_expand(PrepareContext& c) {
  const Dims& out = c.out(0).dims;
  c.require(broadcast_dims(c.in(0).dims, out) == out, "cannot expand ", shown(c.in(0).dims), " to ", shown(out));
  kernels::StridedCopy copy(c.in(0).dtype, out, broadcast_strides(c.in(0).dims, out), strides_of(out));
  return [copy](const KernelArgs& args) { copy(args.inputs[0], args.outputs[0]); };
}

void infer_tile(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  Shape out = in;
  if (auto repeats = c.maybe_ints(1)) {
    c.require(repeats->size() == in.size(), "repeats: got ", repeats->size(), " numbers, expected ", in.size(),
              ", the rank of the input");
    for (std::size_t i = 0; i < in.size(); ++i) {
      const Dim& times = (*repeats)[i];
      c.require(!times.is_known() || times.value() >= 0, "repeats: got ", shown(times), ", expected none below 0");
      out[i] = in[i] * times;
    }
  } else {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = c.data_dependent(concat("tile", i));
  }
  repeat_ints(c, out);
  c.set_shape(0, std::move(out));
}

/// A tile is a copy over (repeat, extent) pairs of axes, where repeating does not move in the source.
Kernel prepare_tile(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  const Dims& out = c.out(0).dims;
  Dims in_strides = strides_of(in);
  Dims out_strides = strides_of(out);
  Dims dims;
  Dims from;
  Dims to;
  for (std::size_t i = 0; i < in.size(); ++i) {
    dims.insert(dims.end(), {in[i] == 0 ? 0 : out[i] / in[i], in[i]});
    from.insert(from.end(), {0, in_strides[i]});
    to.insert(to.end(), {in[i] * out_strides[i], out_strides[i]});
  }
  kernels::StridedCopy copy(c.in(0).dtype, dims, from, to);
  return [copy](const KernelArgs& args) { copy(args.inputs[0], args.outputs[0]); };
}

const Register expand{{.name = "Expand",
                       .since = 13,
                       .doc = "The tensor broadcast with the given extents.",
                       .inputs = {2, 2},
                       .types = types::movable,
                       .infer = infer_expand,
                       .prepare = prepare_expand}};

const Register tile{{.name = "Tile",
                     .since = 13,
                     .doc = "The tensor repeated along each axis.",
                     .inputs = {2, 2},
                     .types = types::movable,
                     .infer = infer_tile,
                     .prepare = prepare_tile}};

}  // namespace
}  // namespace backpass
