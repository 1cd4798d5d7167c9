// Concat: tensors one after the other along an axis.
#include "kernels/strided_copy.hpp"
#include "ops/movement.hpp"
#include "ops/op.hpp"
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

const Register concat_op{{.name = "Concat",
                          .since = 13,
                          .doc = "Tensors one after the other along `axis`.",
                          .inputs = {1, -1},
                          .types = types::movable,
                          .infer = infer,
                          .prepare = prepare}};

}  // namespace
}  // namespace backpass
