// AttentionGrad(dY, Q, K, V, attn_mask, nonpad_kv_seqlen) -> dQ, dK, dV: gradient of Attention, whose attributes it
// has, where there are no keys of earlier runs. FusedAttentionGrad(..., ratio, training_mode): that of FusedAttention,
// which draws again what was dropped.
#include <utility>

#include "graph/op.hpp"
#include "ops/attention/attention_grad_kernel.hpp"
#include "ops/attention/attention_layout.hpp"
#include "ops/flops.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kDy, kQ, kK, kV, kMask, kLengths, kRatio, kTraining };

void infer(InferContext& c) {
  for (std::size_t k = 0; k < 3; ++k) c.set_dtype(k, c.dtype(kQ + k));
  for (std::size_t k = 0; k < 3; ++k) c.set_shape(k, c.shape(kQ + k));
}

template <class T>
Kernel prepare_typed(PrepareContext& c) {
  const std::int64_t q_heads = c.node.attr_int("q_num_heads", 0);
  const std::int64_t kv_heads = c.node.attr_int("kv_num_heads", 0);
  const HeadTensor q = head_tensor(c.in(kQ).dims, q_heads);
  const HeadTensor keys = head_tensor(c.in(kK).dims, kv_heads);
  const HeadTensor values = head_tensor(c.in(kV).dims, kv_heads);
  const HeadTensor y = head_tensor(c.in(kDy).dims, q.heads);
  c.require(y.batch == q.batch && y.heads == q.heads && y.length == q.length && y.size == values.size, "dY: got ",
            shown(c.in(kDy).dims), ", expected the shape of Attention's result");
  const AttentionShape shape = attention_shape(c.node, q, keys, values, 0);
  AttentionTensors<T> fixed;
  fixed.q_strides = q.strides, fixed.k_strides = keys.strides, fixed.v_strides = values.strides;
  fixed.y_strides = y.strides;
  const bool has_mask = c.has_input(kMask);
  const bool chooses = has_mask && c.in(kMask).dtype == DType::boolean;
  if (has_mask) fixed.mask_strides = mask_strides(c.in(kMask).dims), fixed.mask_len = c.in(kMask).dims.back();
  const bool has_lengths = c.has_input(kLengths);
  const DropoutInputs dropout(c, kRatio, kTraining);
  return [=, label = c.node.label()](const KernelArgs& args) {
    AttentionTensors<T> t = fixed;
    t.q = args.in<T>(kQ), t.k = args.in<T>(kK), t.v = args.in<T>(kV);
    if (chooses) t.chosen_mask = args.in<bool>(kMask);
    if (has_mask && !chooses) t.added_mask = args.in<T>(kMask);
    t.dropout = dropout.read(args);
    if (has_lengths) t.kv_lengths = args.in<std::int64_t>(kLengths);
    check_kv_lengths(label, t.kv_lengths, shape);
    attention_backward<T>(shape, t, {args.in<T>(kDy), args.out<T>(0), args.out<T>(1), args.out<T>(2)});
  };
}

Kernel prepare(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(kQ).dtype, [&]<class T>() { kernel = prepare_typed<T>(c); });
  return kernel;
}

Dim operations(const Node& node) { return flops::attention(node, kQ, 3, 2); }

const Register attention_grad{{.name = "AttentionGrad",
                               .domain = "backpass",
                               .since = 1,
                               .doc = "Gradient of Attention.",
                               .inputs = {4, 6},
                               .outputs = {3, 3},
                               .types = types::floats,
                               .infer = infer,
                               .prepare = prepare,
                               .half_through_float = true,
                               .flops = operations}};

const Register fused_attention_grad{{.name = "FusedAttentionGrad",
                                     .domain = "backpass",
                                     .since = 1,
                                     .doc = "Gradient of FusedAttention, by drawing its random numbers again.",
                                     .inputs = {4, 8},
                                     .outputs = {3, 3},
                                     .types = types::floats,
                                     .infer = infer,
                                     .prepare = prepare,
                                     .half_through_float = true,
                                     .is_random = true,
                                     .flops = operations}};

}  // namespace
}  // namespace backpass
