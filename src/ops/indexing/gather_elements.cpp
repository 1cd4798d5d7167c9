// GatherElements, ScatterElements, Scatter and GatherElementsGrad: single elements picked by index along an axis.
#include <cstring>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "graph/partial_read.hpp"
#include "kernels/scatter.hpp"
#include "ops/indexing/gather.hpp"
#include "ops/indexing/scatter_rule.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// Indices have the rank of the data and, beside the indexed axis, no larger extents. Returns the axis.
std::size_t check_indices(const InferContext& c, const Shape& data, const Shape& indices) {
  c.require(indices.size() == data.size(), "indices: got rank ", indices.size(), ", expected ", data.size(),
            ", that of the data");
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (i == axis || !indices[i].is_known() || !data[i].is_known()) continue;
    c.require(indices[i].value() <= data[i].value(), "indices: extent ", shown(indices[i]), " of axis ", i,
              ", expected no more than ", shown(data[i]), ", that of the data");
  }
  return axis;
}

void check_updates(const InferContext& c, const Shape& indices, const Shape& updates) {
  bool fits = indices.size() == updates.size();
  for (std::size_t i = 0; fits && i < indices.size(); ++i) {
    fits = !indices[i].is_known() || !updates[i].is_known() || indices[i] == updates[i];
  }
  c.require(fits, "updates: got ", shown(updates), ", expected ", shown(indices), ", the shape of the indices");
}

void infer_gather(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  if (c.knows_shape(1)) c.set_shape(0, c.shape(1));
  check_indices(c, c.shape(0), c.shape(1));
}

Kernel prepare_gather(PrepareContext& c) {
  const TensorInfo& data = c.in(0);
  DType dtype = data.dtype;
  DType index_type = c.in(1).dtype;
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), data.dims.size());
  kernels::IndexedElements where(data.dims, c.in(1).dims, axis, counts_from_front(c.node));
  return [=, label = c.node.label()](const KernelArgs& args) {
    visit_storage(dtype, [&]<class T>() {
      const T* from = args.in<T>(0);
      T* to = args.out<T>(0);
      where.for_each(label, index_type, args.inputs[1],
                     [&](std::int64_t position, std::int64_t offset) { to[position] = from[offset]; });
    });
  };
}

void infer_scatter(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  movement::require_same_dtype(c, 0, 2);
  kernels::reduction_from(c.node.label(), c.node.attr_string("reduction", "none"));
  c.set_shape(0, c.shape(0));
  check_indices(c, c.shape(0), c.shape(1));
  check_updates(c, c.shape(1), c.shape(2));
}

Kernel prepare_scatter(PrepareContext& c) {
  const TensorInfo& data = c.in(0);
  std::string label = c.node.label();
  DType dtype = data.dtype;
  DType index_type = c.in(1).dtype;
  std::int64_t count = data.size();
  auto reduction = kernels::reduction_from(label, c.node.attr_string("reduction", "none"));
  c.require(c.in(1).dims == c.in(2).dims, "updates: got ", shown(c.in(2).dims), ", expected ", shown(c.in(1).dims));
  const std::size_t axis = c.axis(c.node.attr_int("axis", 0), data.dims.size());
  kernels::IndexedElements where(data.dims, c.in(1).dims, axis, counts_from_front(c.node));
  return [=](const KernelArgs& args) {
    kernels::copy_elements(dtype, args.inputs[0], args.outputs[0], count);
    kernels::scatter_elements(label, dtype, reduction, where, index_type, args.inputs[1], args.inputs[2],
                              args.outputs[0]);
  };
}

/// Inputs: gradient of the gathered elements, shape of the data, indices.
void infer_gather_grad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 2);
  movement::index_list(c, 1, "shape");
  Shape data = c.ints(1);
  c.set_shape(0, data);
  check_indices(c, data, c.shape(2));
  check_updates(c, c.shape(2), c.shape(0));
}

Kernel prepare_gather_grad(PrepareContext& c) {
  const TensorInfo& data = c.out(0);
  DType dtype = data.dtype;
  DType index_type = c.in(2).dtype;
  std::size_t bytes = byte_size(dtype, data.size());
  kernels::IndexedElements where(data.dims, c.in(2).dims, c.axis(c.node.attr_int("axis", 0), data.dims.size()));
  return [=, label = c.node.label()](const KernelArgs& args) {
    std::memset(args.outputs[0], 0, bytes);
    kernels::scatter_elements(label, dtype, kernels::Reduction::add, where, index_type, args.inputs[2], args.inputs[0],
                              args.outputs[0]);
  };
}

void gather_gradient(GradientContext& g) {
  g.set(0, g.op("ScatterElements", {g.zeros_like(g.x()), g.x(1), g.dy()},
                {{"axis", g.node.attr_int("axis", 0)}, {"reduction", std::string("add")}}));
}

void gather_fused_gradient(GradientContext& g) {
  g.set(0, g.op("GatherElementsGrad", {g.dy(), g.shape_of(g.x()), g.x(1)}, {{"axis", g.node.attr_int("axis", 0)}},
                "com.microsoft"));
}

const Register gather_elements{{.name = "GatherElements",
                                .since = 13,
                                .doc = "Elements picked by index along `axis`, one per index.",
                                .inputs = {2, 2},
                                .types = types::movable,
                                .infer = infer_gather,
                                .prepare = prepare_gather,
                                .gradient = gather_gradient,
                                .fused_gradient = gather_fused_gradient}};
const RegisterPartialRead kPartOfGatherElements("GatherElements");

const Register scatter_elements{{.name = "ScatterElements",
                                 .since = 18,
                                 .doc = "A copy with elements at given indices along `axis` replaced or combined.",
                                 .inputs = {3, 3},
                                 .types = types::movable,
                                 .infer = infer_scatter,
                                 .prepare = prepare_scatter,
                                 .gradient = scatter_elements_gradient}};

const Register scatter{{.name = "Scatter",
                        .since = 11,
                        .doc = "The older name of ScatterElements without a reduction.",
                        .inputs = {3, 3},
                        .types = types::movable,
                        .infer = infer_scatter,
                        .prepare = prepare_scatter,
                        .gradient = scatter_elements_gradient}};

/// Opset 11 renamed it.
void rename(Builder& /*b*/, Node& node) { node.op = "ScatterElements"; }
const RegisterAdapter scatter_11{{.op = "Scatter", .below = 11, .lift = rename}};

const Register gather_elements_grad{{.name = "GatherElementsGrad",
                                     .domain = "com.microsoft",
                                     .doc = "Gradient of GatherElements' data: dY added at its indices into zeros.",
                                     .inputs = {3, 3},
                                     .types = types::floats,
                                     .infer = infer_gather_grad,
                                     .prepare = prepare_gather_grad,
                                     .half_through_float = true}};

}  // namespace
}  // namespace backpass
