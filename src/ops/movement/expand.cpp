// Expand and Tile: elements repeated along axes.
#include <algorithm>
#include <limits>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
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
  if (auto target = movement::index_list(c, 1, "shape")) {
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
  if (c.knows_shape(1) && c.rank(1) == 1) {
    const Dim& length = c.shape(1)[0];
    c.require(!length.is_known() || length.is(static_cast<std::int64_t>(in.size())), "repeats: got ", shown(length),
              " numbers, expected ", in.size(), ", the rank of the input");
  }
  if (auto repeats = movement::index_list(c, 1, "repeats")) {
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

/// dy of unknown rank with all axes that x lacks joined into one, which is then summed.
Value* leading_summed(GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  if (rank == 0) return g.op("ReduceSum", {g.dy()}, {{"keepdims", std::int64_t{0}}});
  Value* shape = g.shape_of(g.dy());
  Value* leading = g.reshape(g.op("ReduceProd", {g.slice(shape, 0, -rank, 0)}), {1});
  Value* tail = g.op("Slice", {shape, g.b.ints({-rank}), g.b.ints({std::numeric_limits<std::int64_t>::max()})});
  tail = g.reshape(tail, {rank});
  return g.sum(g.reshape_to(g.dy(), g.concat({leading, tail}, 0)), {0}, false);
}

void expand_gradient(GradientContext& g) { g.set_reduced(0, g.dy()->type.shape ? g.dy() : leading_summed(g)); }

/// Copies lie at (repeat, element) pairs of axes: summed over the repeats.
void tile_gradient(GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  if (rank == 0) return g.set(0, g.dy());
  std::vector<std::int64_t> repeats;
  for (std::int64_t i = 0; i < rank; ++i) repeats.push_back(2 * i);
  Value* pairs = g.concat({g.unsqueeze(g.x(1), {1}), g.unsqueeze(g.shape_of(g.x()), {1})}, 1);
  g.set(0, g.sum(g.reshape_to(g.dy(), g.reshape(pairs, {2 * rank})), std::move(repeats), false));
}

const Register expand{{.name = "Expand",
                       .since = 13,
                       .doc = "The tensor broadcast with the given extents.",
                       .inputs = {2, 2},
                       .types = types::movable,
                       .infer = infer_expand,
                       .prepare = prepare_expand,
                       .gradient = expand_gradient,
                       .is_one_pass = true}};

const Register tile{{.name = "Tile",
                     .since = 13,
                     .doc = "The tensor repeated along each axis.",
                     .inputs = {2, 2},
                     .types = types::movable,
                     .infer = infer_tile,
                     .prepare = prepare_tile,
                     .gradient = tile_gradient}};

}  // namespace
}  // namespace backpass
