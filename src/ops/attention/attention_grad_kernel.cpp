#include "ops/attention/attention_grad_kernel.hpp"

#include <algorithm>
#include <limits>

#include "kernels/activation.hpp"
#include "kernels/gemm_simd.hpp"
#include "kernels/normalize.hpp"
#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_dropout.hpp"
#include "ops/attention/attention_mask.hpp"
#include "ops/attention/attention_rows.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kQueries = 64;  // rows of scores that are worked on together, each over all keys
constexpr std::int64_t kDepth = 256;   // keys summed over at a time: a panel of them stays in the first-level cache

enum Slot : int {
  kKeysAcross = 700,
  kValuesAcross,
  kKeysAlong,
  kWeights,
  kSlopes,
  kCapped,
  kQuery,
  kDy,
  kScaled,
  kPacked
};

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// A few rows that lie next to each other, whatever their distance was.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
};

/// One key head of one batch item, with all query heads that share it: only they add to its gradients.
template <class T>
class KeyHead {
 public:
  KeyHead(const AttentionShape& shape, const AttentionTensors<T>& tensors, const AttentionGradients<T>& gradients,
          const AttentionRows& keys, std::int64_t head)
      : s_(shape), t_(tensors), g_(gradients), keys_(keys), head_(head), gemm_(gemm_kernels<T>()) {
    const std::int64_t k = at(t_.k_strides, head, keys_.first);
    const std::int64_t v = at(t_.v_strides, head, keys_.first);
    k_ = t_.k + k, v_ = t_.v + v, dk_ = g_.dk + k, dv_ = g_.dv + v;
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      std::fill_n(dk_ + j * t_.k_strides.row, s_.head, T(0));
      std::fill_n(dv_ + j * t_.v_strides.row, s_.v_head, T(0));
    }
  }

  void run(std::span<const AttentionRows> queries) {
    if (queries.empty()) return;
    pack_keys();
    const std::int64_t group = s_.q_heads / s_.kv_heads;
    for (std::int64_t h = head_ * group; h < (head_ + 1) * group; ++h) {
      const AttentionMask<T> mask(s_, t_, keys_, h);
      for (const AttentionRows& rows : queries)
        for (std::int64_t first = 0; first < rows.count; first += kQueries)
          add_queries(mask, h, rows.part(first, std::min(kQueries, rows.count - first)));
    }
  }

 private:
  /// A few queries of one head.
  struct Block {
    const AttentionRows& queries;
    const AttentionMask<T>& mask;
    DropoutRows<T> dropout;
    Rows<T> q, dy;
  };

  std::int64_t at(const AttentionStrides& strides, std::int64_t h, std::int64_t row) const {
    return keys_.item * strides.batch + h * strides.head + row * strides.row;
  }

  /// Keys and values as right factors, once for all queries.
  void pack_keys() {
    const std::int64_t columns = round_up(keys_.count, gemm_.panel);
    T* keys = thread_buffer<T, kKeysAcross>(columns * s_.head);
    T* values = thread_buffer<T, kValuesAcross>(columns * s_.v_head);
    gemm_.pack(true, s_.head, keys_.count, k_, t_.k_strides.row, keys, s_.head * gemm_.panel);
    gemm_.pack(true, s_.v_head, keys_.count, v_, t_.v_strides.row, values, s_.v_head * gemm_.panel);
    const std::int64_t head = round_up(s_.head, gemm_.panel);
    T* along = thread_buffer<T, kKeysAlong>(head * keys_.count);
    for (std::int64_t j = 0; j < keys_.count; j += kDepth) {
      const std::int64_t depth = std::min(kDepth, keys_.count - j);
      gemm_.pack(false, depth, s_.head, k_ + j * t_.k_strides.row, t_.k_strides.row, along + j * head,
                 depth * gemm_.panel);
    }
    keys_across_ = keys, values_across_ = values, keys_along_ = along;
  }

  /// What a block of queries sees, from a whole panel on.
  KeyRange seen_by(const AttentionMask<T>& mask, const AttentionRows& queries) const {
    KeyRange keys = mask.seen_by(queries);
    keys.begin = keys.begin / gemm_.panel * gemm_.panel;
    return keys;
  }

  void add_queries(const AttentionMask<T>& mask, std::int64_t h, const AttentionRows& queries) {
    const KeyRange keys = seen_by(mask, queries);
    const std::int64_t q = at(t_.q_strides, h, queries.first);
    const Block block{
        .queries = queries,
        .mask = mask,
        .dropout = DropoutRows<T>(s_, t_.dropout, keys_, h),
        .q = gathered<kQuery>(t_.q + q, t_.q_strides.row, queries.count, s_.head),
        .dy = gathered<kDy>(g_.dy + at(t_.y_strides, h, queries.first), t_.y_strides.row, queries.count, s_.v_head)};
    T factors[kQueries] = {};
    T* dq = g_.dq + q;
    if (keys.begin < keys.end) {
      add_seen(block, keys, factors, dq);
    } else {
      const bool is_number = s_.unseen != Unseen::nan || s_.kv_len == 0;
      const T unseen = is_number ? T(0) : std::numeric_limits<T>::quiet_NaN();
      for (std::int64_t i = 0; i < queries.count; ++i) std::fill_n(dq + i * t_.q_strides.row, s_.head, unseen);
    }
    for (std::int64_t i = 0; i < queries.count && s_.unseen == Unseen::all; ++i)
      if (factors[i] == 0) add_mean(block, i);
  }

  void add_seen(const Block& block, KeyRange keys, T* factors, T* dq) {
    const std::int64_t rows = block.queries.count;
    const std::int64_t count = keys.end - keys.begin;
    stride_ = round_up(count, kLine) + kLine;
    T* slope = thread_buffer<T, kSlopes>(rows * stride_);
    T* p = weights(block, keys, factors);
    gemm_.multiply(rows, count, s_.v_head, block.dy.data, block.dy.stride, values_across_ + keys.begin * s_.v_head,
                   s_.v_head * gemm_.panel, slope, stride_, {});
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = slope + i * stride_;
      const bool* kept = t_.dropout.drops ? block.dropout.kept(block.queries.position(i), keys) : nullptr;
      if (kept != nullptr) block.dropout.drop(kept, count, row);
      score_gradient(p + i * stride_, factors[i], row, count);
      if (g_.dmask != nullptr) block.mask.add_gradient(block.queries.position(i), keys, row, g_.dmask);
      if (kept != nullptr) block.dropout.drop(kept, count, p + i * stride_);
      if (s_.softcap > 0) uncap(slope + i * stride_, i * stride_, count);
    }
    add_values(p, block.dy, factors, rows, keys);
    set_query_gradient(slope, rows, keys, dq);
    const T* packed = pack_rows(block.q.data, block.q.stride, rows, s_.head);
    gemm_.multiply_transposed(count, s_.head, rows, slope, stride_, packed, rows * gemm_.panel,
                              dk_ + keys.begin * t_.k_strides.row, t_.k_strides.row, {static_cast<T>(s_.scale), T(1)});
  }

  /// exp(score - largest) of a block of queries, zero throughout a row that sees no key, and one over the sum of each
  /// row (of such a row zero, or infinity where its probabilities are no numbers).
  T* weights(const Block& block, KeyRange keys, T* factors) {
    const std::int64_t rows = block.queries.count;
    const std::int64_t count = keys.end - keys.begin;
    T* p = thread_buffer<T, kWeights>(rows * stride_);
    gemm_.multiply(rows, count, s_.head, block.q.data, block.q.stride, keys_across_ + keys.begin * s_.head,
                   s_.head * gemm_.panel, p, stride_, {static_cast<T>(s_.scale)});
    if (s_.softcap > 0) capped_ = thread_buffer<T, kCapped>(rows * stride_);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = p + i * stride_;
      if (s_.softcap > 0) cap(row, i * stride_, count);
      block.mask.apply(block.queries.position(i), keys, row);
      T largest = -std::numeric_limits<T>::infinity();
      T rescale = 1;
      const T sum = continue_softmax(row, count, largest, rescale);
      factors[i] = sum == 0 && s_.unseen != Unseen::nan ? T(0) : 1 / sum;
    }
    return p;
  }

  /// Of a query that sees no key, and so gives the mean of all values.
  void add_mean(const Block& block, std::int64_t i) {
    const bool drops = t_.dropout.drops;
    const bool* kept = drops ? block.dropout.kept(block.queries.position(i), {0, keys_.count}) : nullptr;
    const T share = static_cast<T>(drops ? t_.dropout.scale : 1) / static_cast<T>(keys_.count);
    const T* dy = block.dy.data + i * block.dy.stride;
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      T* dv = dv_ + j * t_.v_strides.row;
      for (std::int64_t c = 0; c < s_.v_head && (!drops || kept[j]); ++c) dv[c] += share * dy[c];
    }
  }

  /// dv += p^T dy, where what the rows of p lack to sum to one is put into dy.
  void add_values(const T* p, const Rows<T>& dy, const T* factors, std::int64_t rows, KeyRange keys) {
    T* scaled = thread_buffer<T, kScaled>(rows * s_.v_head);
    for (std::int64_t i = 0; i < rows; ++i)
      affine_run(dy.data + i * dy.stride, scaled + i * s_.v_head, s_.v_head, T(0), factors[i], T(0));
    const T* packed = pack_rows(scaled, s_.v_head, rows, s_.v_head);
    gemm_.multiply_transposed(keys.end - keys.begin, s_.v_head, rows, p, stride_, packed, rows * gemm_.panel,
                              dv_ + keys.begin * t_.v_strides.row, t_.v_strides.row, {T(1), T(1)});
  }

  void set_query_gradient(const T* slope, std::int64_t rows, KeyRange keys, T* dq) const {
    const std::int64_t head = round_up(s_.head, gemm_.panel);
    for (std::int64_t j = keys.begin; j < keys.end;) {
      const std::int64_t first = j / kDepth * kDepth;  // of the packed stretch that j is in
      const std::int64_t depth = std::min(kDepth, keys_.count - first);
      const std::int64_t end = std::min(keys.end, first + depth);
      gemm_.multiply(rows, s_.head, end - j, slope + (j - keys.begin), stride_,
                     keys_along_ + first * head + (j - first) * gemm_.panel, depth * gemm_.panel, dq, t_.q_strides.row,
                     {static_cast<T>(s_.scale), T(j == keys.begin ? 0 : 1)});
      j = end;
    }
  }

  /// Keeps tanh(score / softcap), which the derivative needs.
  void cap(T* scores, std::int64_t offset, std::int64_t count) {
    const auto limit = static_cast<T>(s_.softcap);
    for (std::int64_t j = 0; j < count; ++j) scores[j] /= limit;
    activate<T>({ActivationKind::tanh, 0, 0}, kNoClip<T>, scores, count);
    std::copy_n(scores, count, capped_ + offset);
    for (std::int64_t j = 0; j < count; ++j) scores[j] *= limit;
  }

  void uncap(T* slope, std::int64_t offset, std::int64_t count) const {
    const T* tanh = capped_ + offset;
    for (std::int64_t j = 0; j < count; ++j) slope[j] *= 1 - tanh[j] * tanh[j];
  }

  /// Rows far apart fall into the same few sets of the first-level cache and evict each other.
  template <int kSlot>
  static Rows<T> gathered(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t length) {
    if (stride <= length) return {from, stride};
    T* to = thread_buffer<T, kSlot>(rows * length);
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, length, to + i * length);
    return {to, length};
  }

  const T* pack_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t length) const {
    T* packed = thread_buffer<T, kPacked>(rows * round_up(length, gemm_.panel));
    gemm_.pack(false, rows, length, from, stride, packed, rows * gemm_.panel);
    return packed;
  }

  static constexpr std::int64_t kLine = 16;  // keeps rows of scores from lying a power of two apart

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  const AttentionGradients<T>& g_;
  const AttentionRows& keys_;
  std::int64_t head_;
  const GemmKernels<T>& gemm_;
  const T *k_, *v_;
  T *dk_, *dv_;
  const T *keys_across_ = nullptr, *values_across_ = nullptr, *keys_along_ = nullptr;
  T* capped_ = nullptr;
  std::int64_t stride_ = 0;  ///< from row to row of scores
};

}  // namespace

template <class T>
void attention_backward(const AttentionShape& shape, const AttentionTensors<T>& tensors,
                        const AttentionGradients<T>& gradients) {
  const std::int64_t work = shape.q_len * shape.kv_len * (shape.head + shape.v_head);
  const AttentionRows queries{.count = shape.q_len};
  parallel_for(shape.batch * shape.kv_heads, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const AttentionRows keys{.item = i / shape.kv_heads, .count = shape.kv_len};
      KeyHead<T>(shape, tensors, gradients, keys, i % shape.kv_heads).run({&queries, 1});
    }
  });
}

template <class T>
void attention_backward(const AttentionShape& shape, const AttentionTensors<T>& tensors,
                        const AttentionGradients<T>& gradients, std::span<const AttentionSequence> sequences) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  // Who adds to the same entries of the mask's gradient does so one after the other.
  const bool is_free = gradients.dmask == nullptr;
  const std::int64_t apart = is_free || tensors.mask_strides.batch != 0 ? count : std::min<std::int64_t>(count, 1);
  const std::int64_t heads = is_free || tensors.mask_strides.head != 0 ? shape.kv_heads : 1;
  parallel_for(heads * apart, grain_for(mean_work(shape, sequences)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t head = i / apart; head < shape.kv_heads; head += heads)
        for (std::int64_t s = i % apart; s < count; s += apart) {
          const AttentionSequence& sequence = sequences[static_cast<std::size_t>(s)];
          KeyHead<T>(shape, tensors, gradients, sequence.keys, head).run(sequence.queries);
        }
  });
}

template void attention_backward(const AttentionShape&, const AttentionTensors<float>&,
                                 const AttentionGradients<float>&);
template void attention_backward(const AttentionShape&, const AttentionTensors<double>&,
                                 const AttentionGradients<double>&);
template void attention_backward(const AttentionShape&, const AttentionTensors<float>&,
                                 const AttentionGradients<float>&, std::span<const AttentionSequence>);
template void attention_backward(const AttentionShape&, const AttentionTensors<double>&,
                                 const AttentionGradients<double>&, std::span<const AttentionSequence>);

}  // namespace backpass
