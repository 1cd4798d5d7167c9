// RaggedAttention(q, k, v, q_places, kv_places, extents, mask, ratio, training_mode) -> y: FusedAttention for some rows
// of a batch, each at its place (item * length + position) of the whole. `extents` says how long that is: batch,
// queries, keys. Masks and what is dropped are those of the whole. Attribute `unseen`: what a query that sees no key
// gives.
#include "graph/op.hpp"
#include "ops/attention/attention_layout.hpp"
#include "ops/attention/ragged_attention_rule.hpp"
#include "ops/attention/ragged_layout.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kRaggedQ));
  check_ragged(c, 0);
  const Dim v_head = floor_div(c.shape(kRaggedV)[1], c.node.attr_int("kv_num_heads"));
  c.set_shape(0, {c.shape(kRaggedQ)[0], v_head * c.node.attr_int("q_num_heads")});
}

template <class T>
Kernel prepare_typed(PrepareContext& c) {
  const RaggedLayout layout(c, 0);
  const DropoutInputs dropout(c, kRaggedRatio, kRaggedTraining);
  return [=](const KernelArgs& args) {
    const AttentionShape shape = layout.shape(args);
    AttentionTensors<T> t = layout.strides<T>();
    t.q = args.in<T>(kRaggedQ), t.k = args.in<T>(kRaggedK), t.v = args.in<T>(kRaggedV), t.y = args.out<T>(0);
    layout.set_mask(args, shape, t);
    t.dropout = dropout.read(args);
    attention<T>(shape, t, layout.sequences(args, shape, RaggedGroups::blocks));
  };
}

Kernel prepare(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(kRaggedQ).dtype, [&]<class T>() { kernel = prepare_typed<T>(c); });
  return kernel;
}

const Register ragged_attention{{.name = "RaggedAttention",
                                 .domain = "backpass",
                                 .doc = "FusedAttention for some rows of a batch, each at its place.",
                                 .inputs = {3, 9},
                                 .outputs = {1, 1},
                                 .types = types::floats,
                                 .infer = infer,
                                 .prepare = prepare,
                                 .gradient = ragged_attention_gradient,
                                 .fused_gradient = ragged_attention_fused_gradient,
                                 .half_through_float = true,
                                 .is_random = true,
                                 .flops = [](const Node& node) { return ragged_operations(node, 0, 2); }}};

}  // namespace
}  // namespace backpass
