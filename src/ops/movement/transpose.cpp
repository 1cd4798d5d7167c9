// Transpose: axes in another order.
#include <numeric>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

template <class Context>
std::vector<std::size_t> permutation(const Context& c, std::size_t rank) {
  std::vector<std::size_t> order(rank);
  if (!c.node.has_attribute("perm")) {
    std::iota(order.rbegin(), order.rend(), 0);
    return order;
  }
  std::vector<std::int64_t> perm = c.node.attr_ints("perm");
  c.require(perm.size() == rank, "perm: got ", perm.size(), " axes, expected ", rank, ", the rank of the input");
  std::vector<bool> seen(rank, false);
  for (std::size_t i = 0; i < rank; ++i) {
    order[i] = c.axis(perm[i], rank);
    c.require(!seen[order[i]], "perm: got axis ", perm[i], " twice, expected each exactly once");
    seen[order[i]] = true;
  }
  return order;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  Shape out;
  for (std::size_t axis : permutation(c, in.size())) out.push_back(in[axis]);
  c.set_shape(0, std::move(out));
  if (auto values = movement::ints_of_rank(c, 0, in.size()); values && in.size() <= 1) {
    movement::set_ints(c, 0, *std::move(values));
  }
}

Kernel prepare_bytes(PrepareContext& c) {
  const TensorInfo& in = c.in(0);
  Dims own = strides_of(in.dims);
  Dims strides;
  Dims dims;
  for (std::size_t axis : permutation(c, in.dims.size())) {
    strides.push_back(own[axis]);
    dims.push_back(in.dims[axis]);
  }
  kernels::StridedCopy copy(in.dtype, dims, strides, strides_of(dims));
  return [copy](const KernelArgs& args) { copy(args.inputs[0], args.outputs[0]); };
}

Kernel prepare(PrepareContext& c) { return movement::through_bytes(c, prepare_bytes); }

void gradient(GradientContext& g) {
  if (!g.node.has_attribute("perm")) return g.set(0, g.op("Transpose", {g.dy()}));
  std::vector<std::int64_t> perm = g.node.attr_ints("perm");
  std::vector<std::int64_t> back(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    back[static_cast<std::size_t>(perm[i] < 0 ? perm[i] + std::ssize(perm) : perm[i])] = static_cast<std::int64_t>(i);
  }
  g.set(0, g.transpose(g.dy(), std::move(back)));
}

const Register transpose{{.name = "Transpose",
                          .since = 25,
                          .doc = "Axes in the order of `perm`; reversed without it.",
                          .types = movement::any_type,
                          .infer = infer,
                          .prepare = prepare,
                          .gradient = gradient,
                          .is_one_pass = true}};

}  // namespace
}  // namespace backpass
