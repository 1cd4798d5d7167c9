// Attention: scaled dot-product attention with masks, windows, shared key heads and a key/value cache. FusedAttention:
// the same with dropout of the probabilities, (Attention's inputs, ratio, training_mode) {stream, seed, unseen_is_nan,
// lowest: what a boolean mask adds where it is false, -inf unless given}.
#include <algorithm>
#include <string>
#include <utility>

#include "graph/op.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/attention_layout.hpp"
#include "ops/attention/attention_rule.hpp"
#include "ops/flops.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kQ, kK, kV, kMask, kPastKey, kPastValue, kLengths, kRatio, kTraining };
enum Output : std::size_t { kY, kPresentKey, kPresentValue, kScores };

/// Extents of Q, K or V as heads, whatever the rank.
struct Heads {
  Dim batch, heads, length, size;
};

Heads heads_of(InferContext& c, std::size_t input, std::string_view attribute) {
  const Shape& shape = c.shape(input);
  if (shape.size() == 4) {
    c.require(!c.node.has_attribute(attribute) || c.node.attr_int(attribute, 0) == 0 || !shape[1].is_known() ||
                  shape[1].is(c.node.attr_int(attribute, 0)),
              "attribute '", attribute, "': got ", c.node.attr_int(attribute, 0), ", expected ", shown(shape[1]),
              " as axis 1 of the 4-D input");
    return {shape[0], shape[1], shape[2], shape[3]};
  }
  const std::int64_t heads = c.node.attr_int(attribute, 0);
  c.require(heads > 0, "attribute '", attribute, "': got ", heads, ", expected a positive number with 3-D inputs");
  c.require(!shape[2].is_known() || shape[2].value() % heads == 0, "extent of input ", input, ": got ", shown(shape[2]),
            ", expected a multiple of '", attribute, "' ", heads);
  return {shape[0], heads, shape[1], floor_div(shape[2], heads)};
}

void check_attributes(const InferContext& c) {
  const std::int64_t mode = c.node.attr_int("qk_matmul_output_mode", 0);
  c.require(mode >= 0 && mode <= 3, "attribute 'qk_matmul_output_mode': got ", mode, ", expected 0 to 3");
  for (const char* key : {"left_window_size", "right_window_size"}) {
    const std::int64_t size = c.node.attr_int(key, -1);
    c.require(size >= -1, "attribute '", key, "': got ", size, ", expected -1 or more");
  }
  const float lowest = c.node.attr_float("lowest", static_cast<float>(kLowestScore));
  c.require(lowest <= kLowestScore, "attribute 'lowest': got ", lowest, ", expected ", kLowestScore, " or less");
  c.require(c.has_input(kPastKey) == c.has_input(kPastValue),
            "past_key and past_value: got one, expected both or none");
  c.require(!c.has_input(kPastKey) || !c.has_input(kLengths),
            "nonpad_kv_seqlen: got it together with past_key, expected at most one of them");
}

void check_types(const InferContext& c) {
  for (std::size_t i : {kK, kPastKey})
    if (c.has_input(i))
      c.require(c.dtype(i) == c.dtype(kQ), "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
                name_of(c.dtype(kQ)), " as Q");
  for (std::size_t i : {kV, kPastValue})
    if (c.has_input(i))
      c.require(is_float(c.dtype(i)) && (c.dtype(i) == DType::float64) == (c.dtype(kQ) == DType::float64),
                "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(kQ)),
                " as Q");
  if (c.has_input(kMask)) {
    const DType mask = c.dtype(kMask);
    if (mask != DType::boolean && !is_float(mask))
      fail<Unsupported>(c.node.label(), " element type of attn_mask: got ", name_of(mask),
                        ", expected bool or a float");
    c.require(mask == DType::boolean || (mask == DType::float64) == (c.dtype(kQ) == DType::float64),
              "element type of attn_mask: got ", name_of(mask), ", expected bool or ", name_of(c.dtype(kQ)));
  }
  if (c.has_input(kLengths))
    c.require(c.dtype(kLengths) == DType::int64, "element type of nonpad_kv_seqlen: got ", name_of(c.dtype(kLengths)),
              ", expected int64");
  if (c.has_input(kTraining))
    c.require(c.dtype(kTraining) == DType::boolean, "element type of training_mode: got ", name_of(c.dtype(kTraining)),
              ", expected bool");
}

// The extents of the mask, aligned to the right, are 1 or those of the scores; the last may be shorter.
void check_mask(InferContext& c, const Shape& scores) {
  if (!c.has_input(kMask) || !c.knows_shape(kMask)) return;
  const Shape& mask = c.shape(kMask);
  c.require(!mask.empty() && mask.size() <= 4, "rank of attn_mask: got ", mask.size(), ", expected 1 to 4");
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const Dim& got = mask[mask.size() - 1 - i];
    const Dim& want = scores[3 - i];
    if (!got.is_known() || !want.is_known()) continue;
    const bool fits = i == 0 ? got.value() <= want.value() : got.value() == 1 || got.value() == want.value();
    c.require(fits, "shape of attn_mask: got ", shown(mask), ", expected to broadcast to ", shown(scores));
  }
}

// How many keys come from earlier runs; their other extents are those of the present ones.
Dim past_length(InferContext& c, const Heads& keys, const Dim& value_size) {
  if (!c.has_input(kPastKey)) return 0;
  for (std::size_t i : {kPastKey, kPastValue})
    c.require(c.rank(i) == 4, "rank of input ", i, ": got ", c.rank(i), ", expected 4");
  const Shape &past = c.shape(kPastKey), &values = c.shape(kPastValue);
  c.unify(past[0], keys.batch, "batch of past_key"), c.unify(values[0], keys.batch, "batch of past_value");
  c.unify(past[1], keys.heads, "heads of past_key"), c.unify(values[1], keys.heads, "heads of past_value");
  c.unify(past[3], keys.size, "head size of past_key"), c.unify(values[3], value_size, "head size of past_value");
  return c.unify(past[2], values[2], "lengths of past_key and past_value");
}

void infer(InferContext& c) {
  c.set_dtype(kY, c.dtype(kQ));
  c.set_dtype(kPresentKey, c.dtype(kK));
  c.set_dtype(kPresentValue, c.dtype(kV));
  c.set_dtype(kScores, c.dtype(kQ));
  check_attributes(c);
  check_types(c);
  const std::size_t rank = c.rank(kQ);
  c.require(rank == 3 || rank == 4, "rank of Q: got ", rank, ", expected 3 or 4");
  c.require(c.rank(kK) == rank && c.rank(kV) == rank, "ranks of K and V: got ", c.rank(kK), " and ", c.rank(kV),
            ", expected ", rank, " as Q");
  const Heads q = heads_of(c, kQ, "q_num_heads");
  const Heads k = heads_of(c, kK, "kv_num_heads");
  const Heads v = heads_of(c, kV, "kv_num_heads");
  const Dim batch = c.unify(c.unify(q.batch, k.batch, "batch of Q and K"), v.batch, "batch of Q and V");
  const Dim kv_heads = c.unify(k.heads, v.heads, "heads of K and V");
  const Dim length = c.unify(k.length, v.length, "lengths of K and V");
  const Dim head = c.unify(q.size, k.size, "head sizes of Q and K");
  if (q.heads.is_known() && kv_heads.is_known())
    c.require(kv_heads.value() > 0 && q.heads.value() % kv_heads.value() == 0, "heads of Q: got ", shown(q.heads),
              ", expected a multiple of those of K, ", shown(kv_heads));
  const Dim total = length + past_length(c, {batch, kv_heads, length, head}, v.size);
  check_mask(c, {batch, q.heads, q.length, total});
  if (c.has_input(kLengths) && c.knows_shape(kLengths)) {
    c.require(c.rank(kLengths) == 1, "rank of nonpad_kv_seqlen: got ", c.rank(kLengths), ", expected 1");
    c.unify(c.shape(kLengths)[0], batch, "extent of nonpad_kv_seqlen");
  }
  c.set_shape(kY, rank == 4 ? Shape{batch, q.heads, q.length, v.size} : Shape{batch, q.length, q.heads * v.size});
  c.set_shape(kPresentKey, {batch, kv_heads, total, head});
  c.set_shape(kPresentValue, {batch, kv_heads, total, v.size});
  c.set_shape(kScores, {batch, q.heads, q.length, total});
}

/// Where the keys (or values) of this run lie: in the input, or joined with those of earlier runs.
struct Cache {
  HeadTensor incoming;
  std::int64_t past = 0;
  bool joined = false;
  std::size_t scratch = 0;  ///< offset of the joined ones when no output takes them
};

template <class T>
const T* join(const Cache& cache, const T* past, const T* incoming, T* to) {
  const HeadTensor& in = cache.incoming;
  const std::int64_t old_size = cache.past * in.size;
  for (std::int64_t b = 0; b < in.batch; ++b) {
    for (std::int64_t h = 0; h < in.heads; ++h) {
      T* out = to + (b * in.heads + h) * (cache.past + in.length) * in.size;
      if (old_size > 0) std::copy_n(past + (b * in.heads + h) * old_size, old_size, out);
      const T* from = incoming + b * in.strides.batch + h * in.strides.head;
      for (std::int64_t i = 0; i < in.length; ++i)
        std::copy_n(from + i * in.strides.row, in.size, out + old_size + i * in.size);
    }
  }
  return to;
}

Cache plan_cache(PrepareContext& c, std::size_t input, std::size_t past, std::size_t present, std::size_t element) {
  Cache cache;
  cache.incoming = head_tensor(c.in(input).dims, c.node.attr_int("kv_num_heads", 0));
  if (c.has_input(past)) cache.past = c.in(past).dims[2];
  cache.joined = c.has_input(past) || c.has_output(present);
  const std::int64_t total = cache.past + cache.incoming.length;
  if (cache.joined && !c.has_output(present))
    cache.scratch = c.reserve(
        static_cast<std::size_t>(cache.incoming.batch * cache.incoming.heads * total * cache.incoming.size) * element);
  return cache;
}

AttentionStrides cache_strides(const Cache& cache) {
  if (!cache.joined) return cache.incoming.strides;
  const std::int64_t total = cache.past + cache.incoming.length;
  return {cache.incoming.heads * total * cache.incoming.size, total * cache.incoming.size, cache.incoming.size};
}

template <class T>
Kernel prepare_typed(PrepareContext& c) {
  const HeadTensor q = head_tensor(c.in(kQ).dims, c.node.attr_int("q_num_heads", 0));
  const Cache keys = plan_cache(c, kK, kPastKey, kPresentKey, sizeof(T));
  const Cache values = plan_cache(c, kV, kPastValue, kPresentValue, sizeof(T));
  const AttentionShape shape = attention_shape(c.node, q, keys.incoming, values.incoming, keys.past);
  AttentionTensors<T> fixed;
  fixed.q_strides = q.strides, fixed.k_strides = cache_strides(keys), fixed.v_strides = cache_strides(values);
  fixed.y_strides = head_tensor(c.out(kY).dims, q.heads).strides;
  fixed.stage = static_cast<ScoreStage>(c.node.attr_int("qk_matmul_output_mode", 0));
  const bool has_mask = c.has_input(kMask);
  const bool is_bool = has_mask && c.in(kMask).dtype == DType::boolean;
  if (has_mask) fixed.mask_strides = mask_strides(c.in(kMask).dims), fixed.mask_len = c.in(kMask).dims.back();
  const DropoutInputs dropout(c, kRatio, kTraining);
  const bool has_lengths = c.has_input(kLengths);
  const std::size_t inputs = c.inputs.size();
  const std::size_t outputs = c.outputs.size();
  return [=, label = c.node.label()](const KernelArgs& args) {
    auto in = [&](std::size_t i) { return i < inputs ? args.in<T>(i) : nullptr; };
    auto out = [&](std::size_t i) { return i < outputs ? args.out<T>(i) : nullptr; };
    auto cached = [&](const Cache& cache, std::size_t input, std::size_t past, std::size_t present) {
      T* to = out(present) != nullptr ? out(present) : reinterpret_cast<T*>(args.scratch + cache.scratch);
      return cache.joined ? join<T>(cache, in(past), in(input), to) : in(input);
    };
    AttentionTensors<T> t = fixed;
    t.q = in(kQ), t.y = out(kY), t.scores = out(kScores);
    t.k = cached(keys, kK, kPastKey, kPresentKey);
    t.v = cached(values, kV, kPastValue, kPresentValue);
    if (has_mask && is_bool) t.chosen_mask = args.in<bool>(kMask);
    if (has_mask && !is_bool) t.added_mask = in(kMask);
    t.dropout = dropout.read(args);
    if (has_lengths) t.kv_lengths = args.in<std::int64_t>(kLengths);
    check_kv_lengths(label, t.kv_lengths, shape);
    attention<T>(shape, t);
  };
}

Kernel prepare(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(kQ).dtype, [&]<class T>() { kernel = prepare_typed<T>(c); });
  return kernel;
}

Dim operations(const Node& node) { return flops::attention(node, kQ, 1, 1); }

const Register attention_op{{.name = "Attention",
                             .since = 25,
                             .doc = "Scaled dot-product attention with masks, windows, shared key heads and a cache.",
                             .inputs = {3, 7},
                             .outputs = {1, 4},
                             .types = types::floats,
                             .infer = infer,
                             .prepare = prepare,
                             .gradient = attention_gradient,
                             .fused_gradient = attention_fused_gradient,
                             .half_through_float = true,
                             .flops = operations}};

const Register fused_attention_op{{.name = "FusedAttention",
                                   .domain = "backpass",
                                   .doc = "Attention with dropout of the probabilities, which are nowhere kept.",
                                   .inputs = {3, 9},
                                   .outputs = {1, 1},
                                   .types = types::floats,
                                   .infer = infer,
                                   .prepare = prepare,
                                   .gradient = attention_gradient,
                                   .fused_gradient = attention_fused_gradient,
                                   .half_through_float = true,
                                   .is_random = true,
                                   .flops = operations}};

}  // namespace
}  // namespace backpass
