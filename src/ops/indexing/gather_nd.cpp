// GatherND, ScatterND and GatherNDGrad: slices picked by tuples of indices.
#include <cstring>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "graph/partial_read.hpp"
#include "kernels/scatter.hpp"
#include "ops/indexing/gather.hpp"
#include "ops/indexing/scatter_rule.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

std::size_t batch_dims(const InferContext& c, const Shape& data, const Shape& indices) {
  std::int64_t b = c.node.attr_int("batch_dims", 0);
  auto limit = static_cast<std::int64_t>(std::min(data.size(), indices.size()));
  c.require(limit >= 1, "data and indices: got ranks ", data.size(), " and ", indices.size(), ", expected 1 or more");
  c.require(b >= 0 && b < limit, "batch_dims: got ", b, ", expected one in [0, ", limit, ")");
  return static_cast<std::size_t>(b);
}

/// The shape of what indices select from data: batch axes and tuple axes of the indices, then what is left of the data.
Shape selected(InferContext& c, const Shape& data, const Shape& indices, std::size_t batch) {
  const Dim& tuple = indices.back();
  if (!tuple.is_known()) throw NotKnownYet{};
  auto rest = static_cast<std::int64_t>(data.size() - batch);
  c.require(tuple.value() >= 1 && tuple.value() <= rest, "indices: tuples of ", shown(tuple), ", expected 1 to ", rest,
            " indices");
  Shape out(indices.begin(), indices.end() - 1);
  for (std::size_t i = 0; i < batch; ++i) out[i] = c.unify(indices[i], data[i], "batch extent of data and indices");
  out.insert(out.end(), data.begin() + static_cast<std::ptrdiff_t>(batch) + tuple.value(), data.end());
  return out;
}

void require_shape(const InferContext& c, const char* what, const Shape& got, const Shape& expected) {
  bool fits = got.size() == expected.size();
  for (std::size_t i = 0; fits && i < got.size(); ++i) {
    fits = !got[i].is_known() || !expected[i].is_known() || got[i] == expected[i];
  }
  c.require(fits, what, ": got ", shown(got), ", expected ", shown(expected));
}

void infer_gather(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  const Shape& data = c.shape(0);
  const Shape& indices = c.shape(1);
  c.set_shape(0, selected(c, data, indices, batch_dims(c, data, indices)));
}

/// Offsets of the selected slices: checked, in scratch memory.
struct Offsets {
  kernels::IndexedSlices slices;
  std::size_t scratch;
  DType index_type;
  std::string label;

  Offsets(PrepareContext& c, const Dims& data, const TensorInfo& indices)
      : slices(data, indices.dims, static_cast<std::size_t>(c.node.attr_int("batch_dims", 0)),
               counts_from_front(c.node)),
        scratch(c.reserve(byte_size(DType::int64, slices.count()))),
        index_type(indices.dtype),
        label(c.node.label()) {}

  std::span<const std::int64_t> operator()(const KernelArgs& args, std::size_t input) const {
    auto* offsets = reinterpret_cast<std::int64_t*>(args.scratch + scratch);
    slices.offsets(label, index_type, args.inputs[input], offsets);
    return {offsets, static_cast<std::size_t>(slices.count())};
  }
};

Kernel prepare_gather(PrepareContext& c) {
  Offsets offsets(c, c.in(0).dims, c.in(1));
  DType dtype = c.in(0).dtype;
  return [=](const KernelArgs& args) {
    kernels::gather_slices(dtype, offsets(args, 1), offsets.slices.slice(), args.inputs[0], args.outputs[0]);
  };
}

void infer_scatter(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  movement::require_same_dtype(c, 0, 2);
  kernels::reduction_from(c.node.label(), c.node.attr_string("reduction", "none"));
  const Shape& data = c.shape(0);
  c.set_shape(0, data);
  const Shape& indices = c.shape(1);
  c.require(!data.empty() && !indices.empty(), "data and indices: got ranks ", data.size(), " and ", indices.size(),
            ", expected 1 or more");
  require_shape(c, "updates", c.shape(2), selected(c, data, indices, 0));
}

Kernel prepare_scatter(PrepareContext& c) {
  Offsets offsets(c, c.in(0).dims, c.in(1));
  DType dtype = c.in(0).dtype;
  std::int64_t count = c.in(0).size();
  auto reduction = kernels::reduction_from(c.node.label(), c.node.attr_string("reduction", "none"));
  c.require(c.in(2).size() == offsets.slices.count() * offsets.slices.slice(), "updates: got ", shown(c.in(2).dims));
  return [=](const KernelArgs& args) {
    kernels::copy_elements(dtype, args.inputs[0], args.outputs[0], count);
    kernels::scatter_slices(dtype, reduction, offsets(args, 1), offsets.slices.slice(), args.inputs[2],
                            args.outputs[0]);
  };
}

/// Inputs: shape of the data, indices, gradient of the gathered slices.
void infer_gather_grad(InferContext& c) {
  c.set_dtype(0, c.dtype(2));
  movement::require_index(c, 1);
  movement::index_list(c, 0, "shape");
  Shape data = c.ints(0);
  c.set_shape(0, data);
  const Shape& indices = c.shape(1);
  require_shape(c, "gradient", c.shape(2), selected(c, data, indices, batch_dims(c, data, indices)));
}

Kernel prepare_gather_grad(PrepareContext& c) {
  Offsets offsets(c, c.out(0).dims, c.in(1));
  DType dtype = c.in(2).dtype;
  std::size_t bytes = byte_size(dtype, c.out(0).size());
  c.require(c.in(2).size() == offsets.slices.count() * offsets.slices.slice(), "gradient: got ", shown(c.in(2).dims));
  return [=](const KernelArgs& args) {
    std::memset(args.outputs[0], 0, bytes);
    kernels::scatter_slices(dtype, kernels::Reduction::add, offsets(args, 1), offsets.slices.slice(), args.inputs[2],
                            args.outputs[0]);
  };
}

void gather_gradient(GradientContext& g) {
  if (g.node.attr_int("batch_dims", 0) == 0) {
    return g.set(0, g.op("ScatterND", {g.zeros_like(g.x()), g.x(1), g.dy()}, {{"reduction", std::string("add")}}));
  }
  Value* positions = g.op("GatherND", {positions_of(g, g.x()), g.x(1)}, attributes_of(g.node));
  g.set(0, add_at(g, positions, g.dy(), g.x()));
}

void gather_fused_gradient(GradientContext& g) {
  g.set(0, g.op("GatherNDGrad", {g.shape_of(g.x()), g.x(1), g.dy()}, {{"batch_dims", g.node.attr_int("batch_dims", 0)}},
                "com.microsoft"));
}

const Register gather_nd{{.name = "GatherND",
                          .since = 13,
                          .doc = "Slices picked by tuples of indices.",
                          .inputs = {2, 2},
                          .types = types::movable,
                          .infer = infer_gather,
                          .prepare = prepare_gather,
                          .gradient = gather_gradient,
                          .fused_gradient = gather_fused_gradient}};
const RegisterPartialRead kPartOfGatherND("GatherND");

const Register scatter_nd{{.name = "ScatterND",
                           .since = 18,
                           .doc = "A copy with the slices at given index tuples replaced or combined.",
                           .inputs = {3, 3},
                           .types = types::movable,
                           .infer = infer_scatter,
                           .prepare = prepare_scatter,
                           .gradient = scatter_nd_gradient}};

const Register gather_nd_grad{{.name = "GatherNDGrad",
                               .domain = "com.microsoft",
                               .doc = "Gradient of GatherND's data: slices of dY added at their indices into zeros.",
                               .inputs = {3, 3},
                               .types = {DType::int64},
                               .infer = infer_gather_grad,
                               .prepare = prepare_gather_grad,
                               .half_through_float = true}};

}  // namespace
}  // namespace backpass
