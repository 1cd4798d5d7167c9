// LinearAttention: attention whose memory is one matrix per head, updated token by token.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "graph/op.hpp"
#include "ops/attention/linear_attention_rule.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kQuery, kKey, kValue, kPast, kDecay, kBeta };

struct Rule {
  bool gated, delta;
};

Rule rule_of(const Node& node) {
  const std::string rule = node.attr_string("update_rule", "gated_delta");
  const bool known = rule == "linear" || rule == "gated" || rule == "delta" || rule == "gated_delta";
  if (!known)
    fail(node.label(), " attribute 'update_rule': got ", printable(rule),
         ", expected linear, gated, delta or gated_delta");
  return {rule == "gated" || rule == "gated_delta", rule == "delta" || rule == "gated_delta"};
}

// The extent of each head in a packed axis.
Dim head_size(InferContext& c, std::size_t input, std::int64_t heads) {
  const Shape& shape = c.shape(input);
  c.require(shape.size() == 3, "rank of input ", input, ": got ", shape.size(), ", expected 3");
  c.require(!shape[2].is_known() || shape[2].value() % heads == 0, "extent of input ", input, ": got ", shown(shape[2]),
            ", expected a multiple of its ", heads, " heads");
  return floor_div(shape[2], heads);
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kQuery));
  c.set_dtype(1, c.has_input(kPast) ? c.dtype(kPast) : c.dtype(kQuery));
  const Rule rule = rule_of(c.node);
  const std::int64_t q_heads = c.node.attr_int("q_num_heads");
  const std::int64_t kv_heads = c.node.attr_int("kv_num_heads");
  c.require(kv_heads > 0 && q_heads > 0 && q_heads % kv_heads == 0, "heads: got ", q_heads, " for queries and ",
            kv_heads, " for keys, expected a positive multiple");
  for (std::size_t i : {kKey, kValue, kDecay, kBeta})
    if (c.has_input(i))
      c.require(c.dtype(i) == c.dtype(kQuery), "element type of input ", i, ": got ", name_of(c.dtype(i)),
                ", expected ", name_of(c.dtype(kQuery)), " as query");
  if (c.has_input(kPast))
    c.require(is_float(c.dtype(kPast)) && c.dtype(kPast) != DType::float64, "element type of past_state: got ",
              name_of(c.dtype(kPast)), ", expected float32, float16 or bfloat16");
  c.require(!rule.gated || c.has_input(kDecay), "decay: missing, expected for this update_rule");
  c.require(!rule.delta || c.has_input(kBeta), "beta: missing, expected for this update_rule");
  const Dim dk = c.unify(head_size(c, kQuery, q_heads), head_size(c, kKey, kv_heads), "head sizes of query and key");
  const Dim dv = head_size(c, kValue, kv_heads);
  const Shape& query = c.shape(kQuery);
  for (std::size_t i : {kKey, kValue, kDecay, kBeta}) {
    if (!c.has_input(i)) continue;
    c.require(c.rank(i) == 3, "rank of input ", i, ": got ", c.rank(i), ", expected 3");
    c.unify(c.shape(i)[0], query[0], "batch extents"), c.unify(c.shape(i)[1], query[1], "lengths");
  }
  auto one_of = [&](std::size_t input, const Dim& a, const Dim& b) {
    if (!c.has_input(input)) return;
    const Dim& got = c.shape(input)[2];
    c.require(!got.is_known() || !a.is_known() || !b.is_known() || got == a || got == b, "last extent of input ", input,
              ": got ", shown(got), ", expected ", shown(a), " or ", shown(b));
  };
  one_of(kDecay, kv_heads, dk * Dim(kv_heads));
  one_of(kBeta, kv_heads, 1);
  const Shape state{query[0], kv_heads, dk, dv};
  if (c.has_input(kPast) && c.knows_shape(kPast)) {
    c.require(c.rank(kPast) == 4, "rank of past_state: got ", c.rank(kPast), ", expected 4");
    for (std::size_t i = 0; i < 4; ++i) c.unify(c.shape(kPast)[i], state[i], "extent of past_state");
  }
  c.set_shape(0, {query[0], query[1], dv * Dim(q_heads)});
  c.set_shape(1, state);
}

struct Layout {
  Rule rule;
  std::int64_t batch, length, q_heads, kv_heads, dk, dv, decay_width, beta_width;
  float scale;
};

struct Tensors {
  const float *query, *key, *value, *past, *decay, *beta;
  float *output, *present;
};

// All tokens of one key head of one batch item; `state` is [dk, dv].
void run_head(const Layout& l, const Tensors& t, std::int64_t b, std::int64_t h, float* state, float* update) {
  const std::int64_t group = l.q_heads / l.kv_heads;
  for (std::int64_t step = 0; step < l.length; ++step) {
    const std::int64_t token = b * l.length + step;
    const float* key = t.key + (token * l.kv_heads + h) * l.dk;
    if (l.rule.gated) {
      const bool each = l.decay_width != l.kv_heads;
      const float* decay = t.decay + token * l.decay_width + (each ? h * l.dk : h);
      for (std::int64_t d = 0; d < l.dk; ++d) {
        const float factor = std::exp(decay[each ? d : 0]);
        for (std::int64_t m = 0; m < l.dv; ++m) state[d * l.dv + m] *= factor;
      }
    }
    std::copy_n(t.value + (token * l.kv_heads + h) * l.dv, l.dv, update);
    if (l.rule.delta) {
      const float beta = t.beta[token * l.beta_width + (l.beta_width == 1 ? 0 : h)];
      for (std::int64_t d = 0; d < l.dk; ++d)
        for (std::int64_t m = 0; m < l.dv; ++m) update[m] -= state[d * l.dv + m] * key[d];
      for (std::int64_t m = 0; m < l.dv; ++m) update[m] *= beta;
    }
    for (std::int64_t d = 0; d < l.dk; ++d)
      for (std::int64_t m = 0; m < l.dv; ++m) state[d * l.dv + m] += key[d] * update[m];
    for (std::int64_t g = 0; g < group; ++g) {
      const float* query = t.query + (token * l.q_heads + h * group + g) * l.dk;
      float* out = t.output + (token * l.q_heads + h * group + g) * l.dv;
      std::fill_n(out, l.dv, 0.0F);
      for (std::int64_t d = 0; d < l.dk; ++d)
        for (std::int64_t m = 0; m < l.dv; ++m) out[m] += query[d] * state[d * l.dv + m];
      for (std::int64_t m = 0; m < l.dv; ++m) out[m] *= l.scale;
    }
  }
}

void run(const Layout& l, const Tensors& t) {
  const std::int64_t size = l.dk * l.dv;
  parallel_for(l.batch * l.kv_heads, grain_for(size * l.length * 4), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> state(static_cast<std::size_t>(size));
    std::vector<float> update(static_cast<std::size_t>(l.dv));
    for (std::int64_t i = begin; i < end; ++i) {
      if (t.past != nullptr) {
        std::copy_n(t.past + i * size, size, state.begin());
      } else {
        std::fill(state.begin(), state.end(), 0.0F);
      }
      run_head(l, t, i / l.kv_heads, i % l.kv_heads, state.data(), update.data());
      if (t.present != nullptr) std::copy_n(state.begin(), size, t.present + i * size);
    }
  });
}

Kernel prepare(PrepareContext& c) {
  Layout l{};
  l.rule = rule_of(c.node);
  l.q_heads = c.node.attr_int("q_num_heads"), l.kv_heads = c.node.attr_int("kv_num_heads");
  l.batch = c.in(kQuery).dims[0], l.length = c.in(kQuery).dims[1];
  l.dk = c.in(kQuery).dims[2] / l.q_heads, l.dv = c.in(kValue).dims[2] / l.kv_heads;
  if (c.has_input(kDecay)) l.decay_width = c.in(kDecay).dims[2];
  if (c.has_input(kBeta)) l.beta_width = c.in(kBeta).dims[2];
  l.scale = c.node.attr_float("scale", 0);
  if (l.scale == 0) l.scale = 1 / std::sqrt(static_cast<float>(l.dk));
  const std::size_t inputs = c.inputs.size();
  const bool keeps_state = c.has_output(1);
  return [=](const KernelArgs& args) {
    auto in = [&](std::size_t i) { return i < inputs ? args.in<float>(i) : nullptr; };
    run(l, {in(kQuery), in(kKey), in(kValue), in(kPast), in(kDecay), in(kBeta), args.out<float>(0),
            keeps_state ? args.out<float>(1) : nullptr});
  };
}

const Register linear_attention{{.name = "LinearAttention",
                                 .since = 27,
                                 .doc = "Attention whose memory is one matrix per head, updated token by token.",
                                 .inputs = {3, 6},
                                 .outputs = {1, 2},
                                 .types = types::halves | DTypeSet{DType::float32},
                                 .infer = infer,
                                 .prepare = prepare,
                                 .gradient = linear_attention_gradient,
                                 .half_through_float = true}};

}  // namespace
}  // namespace backpass
