// Gather, ShrunkenGather, GatherGrad and AddGathered: slices along an axis picked by index.
#include "ops/indexing/gather.hpp"

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "graph/partial_read.hpp"
#include "kernels/gather.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

/// Contents of the result when data and indices are known integer vectors.
void keep_ints(InferContext& c) {
  auto data = movement::ints_of_rank(c, 0, 1);
  if (!data || c.rank(1) > 1) return;
  auto indices = movement::numbers(c.maybe_ints(1));
  if (!indices) return;
  std::vector<Dim> picked;
  for (std::size_t j = 0; j < indices->size(); ++j) {
    std::int64_t i = kernels::checked_index(c.node.label(), (*indices)[j], static_cast<std::int64_t>(j),
                                            std::ssize(*data), counts_from_front(c.node));
    picked.push_back((*data)[static_cast<std::size_t>(i)]);
  }
  movement::set_ints(c, 0, std::move(picked));
}

void infer_gather(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  const Shape& data = c.shape(0);
  const Shape& indices = c.shape(1);
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), data.size());
  Shape out(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(axis));
  out.insert(out.end(), indices.begin(), indices.end());
  out.insert(out.end(), data.begin() + static_cast<std::ptrdiff_t>(axis) + 1, data.end());
  c.set_shape(0, std::move(out));
  keep_ints(c);
}

void infer_shrunken_gather(InferContext& c) {
  infer_gather(c);
  c.require(c.rank(1) == 1, "indices: got rank ", c.rank(1), ", expected 1");
  const Dim& extent = c.shape(0)[c.axis(c.node.attr_int("axis", 0), c.rank(0))];
  const Dim& count = c.shape(1)[0];
  c.require(!extent.is_known() || !count.is_known() || count.value() <= extent.value(), "indices: got ", shown(count),
            " of them, expected no more than the extent ", shown(extent));
}

kernels::GatherShape shape_of(const Dims& data, std::size_t axis, std::int64_t count) {
  return {product(data, 0, axis), data[axis], product(data, axis + 1, data.size()), count};
}

Kernel prepare_gather(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  DType index_type = c.in(1).dtype;
  const Dims& data = c.in(0).dims;
  auto shape = shape_of(data, c.axis(c.node.attr_int("axis", 0), data.size()), c.in(1).size());
  shape.from_front = counts_from_front(c.node);
  return [=, label = c.node.label()](const KernelArgs& args) {
    kernels::gather(label, dtype, index_type, shape, args.inputs[0], args.inputs[1], args.outputs[0]);
  };
}

/// Inputs: shape of the data, indices, gradient of the gathered rows.
void infer_gather_grad(InferContext& c) {
  c.set_dtype(0, c.dtype(2));
  movement::require_index(c, 1);
  movement::index_list(c, 0, "shape");
  c.set_shape(0, c.ints(0));
}

/// Where input 2 is added, at the indices of input 1.
kernels::GatherShape gathered_rows(const PrepareContext& c, const Dims& data) {
  const auto shape = shape_of(data, c.axis(c.node.attr_int("axis", 0), data.size()), c.in(1).size());
  c.require(c.in(2).size() == shape.outer * shape.count * shape.inner, "gradient: got ", shown(c.in(2).dims),
            ", expected ", shape.outer * shape.count * shape.inner, " elements to scatter into ", shown(data));
  return shape;
}

Kernel prepare_gather_grad(PrepareContext& c) {
  DType dtype = c.in(2).dtype;
  DType index_type = c.in(1).dtype;
  const kernels::GatherShape shape = gathered_rows(c, c.out(0).dims);
  const std::size_t room = c.reserve(byte_size(DType::int64, shape.extent + shape.count));
  return [=, label = c.node.label()](const KernelArgs& args) {
    kernels::gather_grad(label, dtype, index_type, shape, args.inputs[2], args.inputs[1], args.outputs[0],
                         reinterpret_cast<std::int64_t*>(args.scratch + room));
  };
}

/// Inputs: what rows are added to, indices, the rows.
void infer_add_gathered(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(2), "rows: got ", name_of(c.dtype(2)), ", expected ", name_of(c.dtype(0)));
  movement::require_index(c, 1);
  rules::same_as_input(c);
}

Kernel prepare_add_gathered(PrepareContext& c) {
  const DType dtype = c.in(0).dtype;
  const DType index_type = c.in(1).dtype;
  const std::int64_t count = c.in(0).size();
  const kernels::GatherShape shape = gathered_rows(c, c.in(0).dims);
  return [=, label = c.node.label()](const KernelArgs& args) {
    if (args.outputs[0] != args.inputs[0]) kernels::copy_elements(dtype, args.inputs[0], args.outputs[0], count);
    kernels::add_gathered(label, dtype, index_type, shape, args.inputs[2], args.inputs[1], args.outputs[0]);
  };
}

void gradient(GradientContext& g) { g.set(0, add_slices_at(g, g.x(1), g.dy(), g.x(), g.node.attr_int("axis", 0))); }

void fused_gradient(GradientContext& g) {
  g.set(0, g.op("GatherGrad", {g.shape_of(g.x()), g.x(1), g.dy()}, {{"axis", g.node.attr_int("axis", 0)}},
                "com.microsoft"));
}

const Register gather{{.name = "Gather",
                       .since = 13,
                       .doc = "Slices along `axis` picked by index.",
                       .inputs = {2, 2},
                       .types = types::movable,
                       .infer = infer_gather,
                       .prepare = prepare_gather,
                       .gradient = gradient,
                       .fused_gradient = fused_gradient}};
const RegisterPartialRead kPartOfGather("Gather");

const Register shrunken_gather{{.name = "ShrunkenGather",
                                .domain = "com.microsoft",
                                .doc = "Gather with a list of indices no longer than the axis.",
                                .inputs = {2, 2},
                                .types = types::movable,
                                .infer = infer_shrunken_gather,
                                .prepare = prepare_gather,
                                .gradient = gradient,
                                .fused_gradient = fused_gradient}};
const RegisterPartialRead kPartOfShrunkenGather("ShrunkenGather", "com.microsoft");

const Register gather_grad{{.name = "GatherGrad",
                            .domain = "com.microsoft",
                            .doc = "Gradient of Gather's data: rows of dY added at their indices into zeros.",
                            .inputs = {3, 3},
                            .types = {DType::int64},
                            .infer = infer_gather_grad,
                            .prepare = prepare_gather_grad,
                            .half_through_float = true}};

const Register add_gathered{{.name = "AddGathered",
                             .domain = "backpass",
                             .doc = "A sum that GatherGrad would be added to: rows are added at their indices.",
                             .inputs = {3, 3},
                             .types = types::floats,
                             .infer = infer_add_gathered,
                             .prepare = prepare_add_gathered,
                             .half_through_float = true,
                             .in_place_input = 0}};

}  // namespace
}  // namespace backpass
