#include "ops/attention/attention_kernel.hpp"

#include <algorithm>
#include <limits>

#include "kernels/activation.hpp"
#include "kernels/gemm.hpp"
#include "kernels/normalize.hpp"
#include "ops/attention/attention_dropout.hpp"
#include "ops/attention/attention_mask.hpp"
#include "ops/attention/attention_operands.hpp"
#include "support/float_mode.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

// Keys of one block of scores: with kQueryRows queries both products run at full speed, and the block stays in the
// second-level cache.
constexpr std::int64_t kKeys = 256;
// Fewer queries read keys and values where they lie.
constexpr std::int64_t kWorthPacking = 16;

enum Slot : int { kScores = 712, kGathered, kKeysAcross, kValuesAlong };

/// What a block of queries of one head reads.
template <class T>
struct BlockRows {
  BlockRows(const AttentionShape& s, const AttentionTensors<T>& t, const AttentionRows& keys,
            const AttentionRows& queries, std::int64_t h)
      : q{t.q + t.q_strides.at(keys.item, h, queries.first), t.q_strides.row, queries.count, s.head},
        k{t.k + t.k_strides.at(keys.item, key_head(s, h), keys.first), t.k_strides.row, keys.count, s.head},
        v{t.v + t.v_strides.at(keys.item, key_head(s, h), keys.first), t.v_strides.row, keys.count, s.v_head} {}

  static std::int64_t key_head(const AttentionShape& s, std::int64_t h) { return h / (s.q_heads / s.kv_heads); }

  HeadRows<T> q, k, v;
};

template <class T>
class QueryBlock {
 public:
  QueryBlock(const AttentionShape& shape, const AttentionTensors<T>& tensors, const AttentionRows& keys,
             const AttentionRows& queries, std::int64_t h)
      : s_(shape),
        t_(tensors),
        keys_(keys),
        queries_(queries),
        mask_(shape, tensors, keys, h),
        dropout_(shape, tensors.dropout, keys, h),
        h_(h),
        rows_(queries.count),
        operands_(shape, tensors, keys, queries, h),
        y_(tensors.y + tensors.y_strides.at(keys.item, h, queries.first)) {}

  /// What a block that comes next reads, unless this one does, too.
  void fetch_for(const BlockRows<T>& next) {
    ahead_.add(next.q);
    if (next.k.data == operands_.k.data) return;
    ahead_.add(next.k);
    ahead_.add(next.v);
  }

  void run() {
    const TinyAsZero tiny;
    std::fill_n(max_, rows_, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, rows_, T(0));
    // Scores that are asked for are computed for all keys; otherwise keys that no query of the block sees are left out.
    const bool record = t_.scores != nullptr;
    const KeyRange keys = record ? KeyRange{0, keys_.count} : mask_.seen_by(queries_);
    const std::int64_t step = record ? std::max<std::int64_t>(s_.kv_len, 1) : kKeys;
    if (keys.begin >= keys.end)
      for (std::int64_t i = 0; i < rows_; ++i) std::fill_n(y_ + i * t_.y_strides.row, s_.v_head, T(0));
    for (std::int64_t j = keys.begin; j < keys.end; j += step)
      add_keys({j, std::min(keys.end, j + step)}, j == keys.begin);
    for (std::int64_t i = 0; i < rows_; ++i) finish(i);
  }

 private:
  void add_keys(KeyRange keys, bool is_first) {
    const std::int64_t stride = score_stride(keys.end - keys.begin);
    T* scores = thread_buffer<T, kScores>(rows_ * stride);
    multiply_keys(keys, scores, stride);
    for (std::int64_t i = 0; i < rows_; ++i) {
      ahead_.fetch();
      weigh(i, keys, scores + i * stride, is_first);
    }
    add_values(keys, scores, stride, is_first ? T(0) : T(1));
  }

  void multiply_keys(KeyRange keys, T* scores, std::int64_t stride) const {
    const std::int64_t count = keys.end - keys.begin;
    const HeadRows<T>& q = operands_.q;
    const HeadRows<T> k = operands_.k.part(keys.begin, count);
    const auto scale = static_cast<T>(s_.scale);
    if (rows_ < kWorthPacking) {
      gemm<T>(false, true, rows_, count, s_.head, scale, q.data, q.stride, k.data, k.stride, T(0), scores, stride);
      return;
    }
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const T* panels = packed_across<kKeysAcross>(k);
    const HeadRows<T> near = gathered<kGathered>(q);
    kernels.multiply(rows_, count, s_.head, near.data, near.stride, panels, s_.head * kernels.panel, scores, stride,
                     {scale});
  }

  void add_values(KeyRange keys, const T* weights, std::int64_t stride, T beta) const {
    const std::int64_t count = keys.end - keys.begin;
    const HeadRows<T> v = operands_.v.part(keys.begin, count);
    if (rows_ < kWorthPacking) {
      gemm<T>(false, false, rows_, s_.v_head, count, T(1), weights, stride, v.data, v.stride, beta, y_,
              t_.y_strides.row);
      return;
    }
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const T* panels = packed_along<kValuesAlong>(v);
    kernels.multiply(rows_, s_.v_head, count, weights, stride, panels, count * kernels.panel, y_, t_.y_strides.row,
                     {T(1), beta});
  }

  // From products to weights of one row; what earlier blocks gave is put on the same scale.
  void weigh(std::int64_t i, KeyRange keys, T* row, bool is_first) {
    const std::int64_t count = keys.end - keys.begin;
    record(ScoreStage::product, i, row);
    if (s_.softcap > 0) {
      for (std::int64_t j = 0; j < count; ++j) row[j] /= static_cast<T>(s_.softcap);
      activate<T>({ActivationKind::tanh, 0, 0}, kNoClip<T>, row, count);
      for (std::int64_t j = 0; j < count; ++j) row[j] *= static_cast<T>(s_.softcap);
    }
    record(ScoreStage::capped, i, row);
    mask_.apply(queries_.position(i), keys, row);
    record(ScoreStage::masked, i, row);
    T rescale = 1;
    const T sum = continue_softmax(row, count, max_[i], rescale);
    sum_[i] = sum_[i] * rescale + sum;
    if (!is_first && rescale != 1) scale_output(i, rescale);
    record(ScoreStage::probability, i, row);
    if (t_.dropout.drops) dropout_.drop(dropout_.kept(queries_.position(i), keys), count, T(1), row);
  }

  void record(ScoreStage stage, std::int64_t i, const T* row) const {
    if (t_.scores == nullptr || t_.stage != stage) return;
    T* to = t_.scores + ((keys_.item * s_.q_heads + h_) * s_.q_len + queries_.position(i)) * s_.kv_len;
    std::copy_n(row, s_.kv_len, to);
    if (stage == ScoreStage::probability && sum_[i] != 0)
      for (std::int64_t j = 0; j < s_.kv_len; ++j) to[j] /= sum_[i];
  }

  void scale_output(std::int64_t i, T factor) {
    T* y = y_ + i * t_.y_strides.row;
    affine_run(y, y, s_.v_head, T(0), factor, T(0));
  }

  void finish(std::int64_t i) {
    const bool is_number = s_.unseen != Unseen::nan || s_.kv_len == 0;
    if (sum_[i] != 0 || !is_number) return scale_output(i, 1 / sum_[i]);
    std::fill_n(y_ + i * t_.y_strides.row, s_.v_head, T(0));
    if (s_.unseen == Unseen::all) add_mean(i);
  }

  void add_mean(std::int64_t i) {
    const bool drops = t_.dropout.drops;
    const bool* kept = drops ? dropout_.kept(queries_.position(i), {0, keys_.count}) : nullptr;
    const T share = static_cast<T>(drops ? t_.dropout.scale : 1) / static_cast<T>(keys_.count);
    T* y = y_ + i * t_.y_strides.row;
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      const T* v = operands_.v.data + j * operands_.v.stride;
      for (std::int64_t c = 0; c < s_.v_head && (!drops || kept[j]); ++c) y[c] += share * v[c];
    }
  }

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  const AttentionRows &keys_, &queries_;
  AttentionMask<T> mask_;
  DropoutRows<T> dropout_;
  std::int64_t h_, rows_;
  BlockRows<T> operands_;
  RowsAhead<T> ahead_;
  T* y_;
  T max_[kQueryRows];  ///< largest score of each row so far
  T sum_[kQueryRows];  ///< sum of the row's weights so far
};

}  // namespace

template <class T>
void attention(const AttentionShape& shape, const AttentionTensors<T>& tensors) {
  if (shape.q_len == 0 || shape.batch == 0 || shape.q_heads == 0) return;
  const AttentionRows all{.count = shape.q_len};
  const std::int64_t blocks = (shape.q_len + kQueryRows - 1) / kQueryRows;
  const std::int64_t work = std::min(kQueryRows, shape.q_len) * shape.kv_len * (shape.head + shape.v_head);
  auto keys_of = [&](std::int64_t i) {
    return AttentionRows{.item = i / blocks / shape.q_heads, .count = shape.kv_len};
  };
  auto queries_of = [&](std::int64_t i) {
    const std::int64_t first = i % blocks * kQueryRows;
    return all.part(first, std::min(kQueryRows, shape.q_len - first));
  };
  auto head_of = [&](std::int64_t i) { return i / blocks % shape.q_heads; };
  const std::int64_t count = shape.batch * shape.q_heads * blocks;
  parallel_for(count, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const AttentionRows keys = keys_of(i);
      const AttentionRows queries = queries_of(i);
      QueryBlock<T> block(shape, tensors, keys, queries, head_of(i));
      if (i + 1 < count) block.fetch_for({shape, tensors, keys_of(i + 1), queries_of(i + 1), head_of(i + 1)});
      block.run();
    }
  });
}

template <class T>
void attention(const AttentionShape& shape, const AttentionTensors<T>& tensors,
               std::span<const AttentionSequence> sequences) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  // Heads outside: a chunk has several sequences, long and short, rather than all heads of a long one.
  parallel_for(shape.q_heads * count, grain_for(mean_work(shape, sequences)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const AttentionSequence& sequence = sequences[static_cast<std::size_t>(i % count)];
                   for (const AttentionRows& queries : sequence.queries)
                     QueryBlock<T>(shape, tensors, sequence.keys, queries, i / count).run();
                 }
               });
}

std::int64_t mean_work(const AttentionShape& shape, std::span<const AttentionSequence> sequences) {
  std::int64_t scores = 0;
  for (const AttentionSequence& sequence : sequences)
    for (const AttentionRows& queries : sequence.queries) scores += queries.count * sequence.keys.count;
  return scores * (shape.head + shape.v_head) / std::max<std::int64_t>(1, std::ssize(sequences));
}

template void attention(const AttentionShape&, const AttentionTensors<float>&);
template void attention(const AttentionShape&, const AttentionTensors<double>&);
template void attention(const AttentionShape&, const AttentionTensors<float>&, std::span<const AttentionSequence>);
template void attention(const AttentionShape&, const AttentionTensors<double>&, std::span<const AttentionSequence>);

}  // namespace backpass
