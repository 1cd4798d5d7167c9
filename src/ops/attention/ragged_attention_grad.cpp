// RaggedAttentionGrad(dy, q, k, v, q_places, kv_places, extents, mask, ratio, training_mode) -> dq, dk, dv,
// dmask: gradient of RaggedAttention, whose attributes it has, by drawing its random numbers again.
#include <algorithm>

#include "graph/op.hpp"
#include "ops/attention/attention_grad_kernel.hpp"
#include "ops/attention/attention_layout.hpp"
#include "ops/attention/ragged_layout.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::size_t kQ = 1;
constexpr std::size_t kDmask = 3;

void infer(InferContext& c) {
  for (std::size_t k = 0; k < 3; ++k) c.set_dtype(k, c.dtype(kQ + k));
  check_ragged(c, kQ);
  for (std::size_t k = 0; k < 3; ++k) c.set_shape(k, c.shape(kQ + k));
  if (!c.has_output(kDmask)) return;
  const DType mask = c.dtype(kQ + kRaggedMask);
  c.require(is_float(mask), "output dmask: got a mask of ", name_of(mask), ", expected one of floats");
  c.set(kDmask, mask, c.shape(kQ + kRaggedMask));
}

template <class T>
Kernel prepare_typed(PrepareContext& c) {
  const RaggedLayout layout(c, kQ);
  const Dims y{c.in(kQ + kRaggedQ).dims[0], layout.strides<T>().y_strides.row};
  c.require(c.in(0).dims == y, "dy: got ", shown(c.in(0).dims), ", expected ", shown(y));
  const DropoutInputs dropout(c, kQ + kRaggedRatio, kQ + kRaggedTraining);
  const bool wants_mask = c.has_output(kDmask);
  const std::int64_t mask_size = wants_mask ? c.out(kDmask).size() : 0;
  return [=](const KernelArgs& args) {
    const AttentionShape shape = layout.shape(args);
    AttentionTensors<T> t = layout.strides<T>();
    t.q = args.in<T>(kQ + kRaggedQ), t.k = args.in<T>(kQ + kRaggedK), t.v = args.in<T>(kQ + kRaggedV);
    layout.set_mask(args, shape, t);
    t.dropout = dropout.read(args);
    T* dmask = wants_mask ? args.out<T>(kDmask) : nullptr;
    if (wants_mask) std::fill_n(dmask, mask_size, T(0));
    attention_backward<T>(shape, t, {args.in<T>(0), args.out<T>(0), args.out<T>(1), args.out<T>(2), dmask},
                          layout.sequences(args, shape, RaggedGroups::items));
  };
}

Kernel prepare(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(kQ).dtype, [&]<class T>() { kernel = prepare_typed<T>(c); });
  return kernel;
}

const Register ragged_attention_grad{{.name = "RaggedAttentionGrad",
                                      .domain = "backpass",
                                      .since = 1,
                                      .doc = "Gradient of RaggedAttention, by drawing its random numbers again.",
                                      .inputs = {4, 10},
                                      .outputs = {3, 4},
                                      .types = types::floats,
                                      .infer = infer,
                                      .prepare = prepare,
                                      .half_through_float = true,
                                      .is_random = true,
                                      .flops = [](const Node& node) { return ragged_operations(node, 1, 5); }}};

}  // namespace
}  // namespace backpass
