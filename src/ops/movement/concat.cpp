// Concat and ConcatTraining: tensors one after the other along an axis.
#include <algorithm>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void keep_ints(InferContext& c) {
  std::vector<Dim> all;
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    auto values = movement::ints_of_rank(c, i, 1);
    if (!values) return;
    all.insert(all.end(), values->begin(), values->end());
  }
  movement::set_ints(c, 0, std::move(all));
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  for (std::size_t i = 1; i < c.input_count(); ++i) movement::require_same_dtype(c, 0, i);
  Shape out = c.shape(0);
  c.require(!out.empty(), "input 0: got a scalar, expected at least one axis; Unsqueeze scalars first");
  std::size_t axis = c.axis(c.node.attr_int("axis"), out.size());
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    const Shape& in = c.shape(i);
    c.require(in.size() == out.size(), "input ", i, ": got rank ", in.size(), ", expected ", out.size(),
              ", that of input 0");
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] = d == axis ? out[d] + in[d] : c.unify(out[d], in[d], concat("extent of axis ", d, " of input ", i));
    }
  }
  c.set_shape(0, std::move(out));
  keep_ints(c);
}

/// The training form also gives the extent of every input along the axis.
void infer_training(InferContext& c) {
  auto count = static_cast<std::int64_t>(c.input_count());
  c.set(1, DType::int64, {count});
  infer(c);
  std::size_t axis = c.axis(c.node.attr_int("axis"), c.rank(0));
  std::vector<Dim> lengths;
  for (std::size_t i = 0; i < c.input_count(); ++i) lengths.push_back(c.shape(i)[axis]);
  movement::set_ints(c, 1, std::move(lengths));
}

struct Part {
  kernels::StridedCopy copy;
  std::size_t offset;  ///< of its first element in the output, in bytes
};

Kernel prepare(PrepareContext& c) {
  const TensorInfo& out = c.out(0);
  std::size_t axis = c.axis(c.node.attr_int("axis"), out.dims.size());
  Dims to = strides_of(out.dims);
  std::vector<Part> parts;
  std::int64_t position = 0;
  for (const TensorInfo& in : c.inputs) {
    parts.push_back({{out.dtype, in.dims, strides_of(in.dims), to}, byte_size(out.dtype, position * to[axis])});
    position += in.dims[axis];
  }
  return [parts = std::move(parts)](const KernelArgs& args) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].copy(args.inputs[i], args.out<std::byte>(0) + parts[i].offset);
    }
  };
}

Kernel prepare_training(PrepareContext& c) {
  std::size_t axis = c.axis(c.node.attr_int("axis"), c.in(0).dims.size());
  Dims lengths;
  for (const TensorInfo& in : c.inputs) lengths.push_back(in.dims[axis]);
  bool wanted = c.has_output(1);
  return [=, join = prepare(c)](const KernelArgs& args) {
    join(args);
    if (wanted) std::copy(lengths.begin(), lengths.end(), args.out<std::int64_t>(1));
  };
}

void gradient(GradientContext& g) {
  const std::size_t count = g.node.inputs.size();
  if (count == 1) return g.set(0, g.dy());
  const std::int64_t axis = g.node.attr_int("axis");
  std::vector<Value*> lengths;
  std::vector<std::int64_t> known;
  for (Value* x : g.node.inputs) {
    lengths.push_back(g.extent(x, axis));
    if (lengths.back()->constant) known.push_back(lengths.back()->constant->to_ints()[0]);
  }
  Value* sizes = known.size() == count ? g.b.ints(std::move(known)) : vector_of(g, lengths);
  std::vector<Value*> parts = g.b.ops("Split", {g.dy(), sizes}, count, {{"axis", axis}});
  for (std::size_t i = 0; i < count; ++i) g.set(i, parts[i]);
}

const Register concat_op{{.name = "Concat",
                          .since = 13,
                          .doc = "Tensors one after the other along `axis`.",
                          .inputs = {1, -1},
                          .types = types::movable,
                          .infer = infer,
                          .prepare = prepare,
                          .gradient = gradient,
                          .is_one_pass = true}};

const Register concat_training{{.name = "ConcatTraining",
                                .domain = "com.microsoft",
                                .doc = "Concat that also gives the extent of every input along `axis`.",
                                .inputs = {1, -1},
                                .outputs = {1, 2},
                                .types = types::movable,
                                .infer = infer_training,
                                .prepare = prepare_training,
                                .gradient = gradient}};

}  // namespace
}  // namespace backpass
