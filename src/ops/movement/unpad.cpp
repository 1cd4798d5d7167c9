// FlattenAndUnpad and PadAndUnflatten: the rows of a batch that carry data, and back into a batch with zero rows.
#include <algorithm>
#include <array>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "kernels/gather.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void check_indices(const InferContext& c) {
  movement::require_index(c, 1);
  c.require(c.rank(1) == 1, "indices: got rank ", c.rank(1), ", expected 1");
}

void infer_unpad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set(1, DType::int64, {2});
  check_indices(c);
  const Shape& in = c.shape(0);
  c.require(in.size() >= 2, "input: got rank ", in.size(), ", expected 2 or more");
  Shape out{c.shape(1)[0]};
  out.insert(out.end(), in.begin() + 2, in.end());
  c.set_shape(0, std::move(out));
  movement::set_ints(c, 1, {in[0], in[1]});
}

Kernel prepare_unpad(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  DType dtype = c.in(0).dtype;
  DType index_type = c.in(1).dtype;
  std::array<std::int64_t, 2> leading{in[0], in[1]};
  kernels::GatherShape shape{1, in[0] * in[1], product(in, 2, in.size()), c.in(1).size()};
  bool wants_dims = c.has_output(1);
  return [=, label = c.node.label()](const KernelArgs& args) {
    kernels::gather(label, dtype, index_type, shape, args.inputs[0], args.inputs[1], args.outputs[0]);
    if (wants_dims) std::copy(leading.begin(), leading.end(), args.out<std::int64_t>(1));
  };
}

void infer_pad(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  check_indices(c);
  const Shape& in = c.shape(0);
  c.require(!in.empty(), "input: got a scalar, expected rows");
  c.unify(in[0], c.shape(1)[0], "number of rows and of indices");
  Shape out;
  if (auto leading = movement::index_list(c, 2, "unflatten_dims")) {
    c.require(leading->size() == 2, "unflatten_dims: got ", leading->size(), " numbers, expected 2");
    out = *leading;
  } else {
    out = {c.data_dependent("rows0"), c.data_dependent("rows1")};
  }
  out.insert(out.end(), in.begin() + 1, in.end());
  c.set_shape(0, std::move(out));
}

Kernel prepare_pad(PrepareContext& c) {
  const Dims& out = c.out(0).dims;
  DType dtype = c.in(0).dtype;
  DType index_type = c.in(1).dtype;
  std::int64_t count = c.in(1).size();
  kernels::GatherShape shape{1, out[0] * out[1], product(out, 2, out.size()), count};
  c.require(c.in(0).dims[0] == count, "got ", c.in(0).dims[0], " rows and ", count, " indices, expected as many");
  std::size_t room = c.reserve(byte_size(DType::int64, shape.extent + count));
  return [=, label = c.node.label()](const KernelArgs& args) {
    kernels::put_rows(label, dtype, index_type, shape, args.inputs[0], args.inputs[1], args.outputs[0],
                      reinterpret_cast<std::int64_t*>(args.scratch + room));
  };
}

/// The tensor with its first two axes as one.
Value* rows_of(GradientContext& g, Value* a) {
  std::vector<Value*> extents{g.mul(g.extent(a, 0), g.extent(a, 1))};
  for (std::int64_t i = 2; i < g.rank(a); ++i) extents.push_back(g.extent(a, i));
  return g.reshape_to(a, vector_of(g, extents));
}

void unpad_gradient(GradientContext& g) {
  g.set(0, g.reshape_like(add_slices_at(g, g.x(1), g.dy(), rows_of(g, g.x()), 0), g.x()));
}

void unpad_fused_gradient(GradientContext& g) {
  Value* leading = vector_of(g, {g.extent(g.x(), 0), g.extent(g.x(), 1)});
  g.set(0, g.op("PadAndUnflatten", {g.dy(), g.x(1), leading}, {}, "com.microsoft"));
}

void pad_gradient(GradientContext& g) { g.set(0, g.gather(rows_of(g, g.dy()), g.x(1), 0)); }

void pad_fused_gradient(GradientContext& g) {
  g.set(0, g.b.ops("FlattenAndUnpad", {g.dy(), g.x(1)}, 2, {}, "com.microsoft")[0]);
}

const Register flatten_and_unpad{
    {.name = "FlattenAndUnpad",
     .domain = "com.microsoft",
     .doc = "The first two axes as one, of which the listed rows are kept; and their extents.",
     .inputs = {2, 2},
     .outputs = {1, 2},
     .types = types::numbers | types::boolean,
     .infer = infer_unpad,
     .prepare = prepare_unpad,
     .gradient = unpad_gradient,
     .fused_gradient = unpad_fused_gradient}};

const Register pad_and_unflatten{{.name = "PadAndUnflatten",
                                  .domain = "com.microsoft",
                                  .doc = "Rows put back at their indices among zero rows, the first axis split in two.",
                                  .inputs = {3, 3},
                                  .types = types::numbers | types::boolean,
                                  .infer = infer_pad,
                                  .prepare = prepare_pad,
                                  .gradient = pad_gradient,
                                  .fused_gradient = pad_fused_gradient}};

}  // namespace
}  // namespace backpass
