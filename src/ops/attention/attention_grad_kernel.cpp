#include "ops/attention/attention_grad_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/activation.hpp"
#include "kernels/gemm_simd.hpp"
#include "kernels/normalize.hpp"
#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_dropout.hpp"
#include "ops/attention/attention_mask.hpp"
#include "ops/attention/attention_operands.hpp"
#include "support/float_mode.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kDepth = 256;      // keys summed over at a time: a panel of them stays in the first-level cache
constexpr std::int64_t kQueries = 128;    // rows of scores that are worked on together at most, each over all keys
constexpr std::int64_t kFewQueries = 64;  // where scores would leave the second-level cache, or some see fewer keys

enum Slot : int {
  kKeysAcross = 700,
  kValuesAcross,
  kKeysAlong,
  kWeights,
  kSlopes,
  kCapped,
  kQuery,
  kDy,
  kPacked,
  kKeyRows,
  kValueRows
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
    k_ = {t_.k + k, t_.k_strides.row, keys.count, s_.head}, dk_ = g_.dk + k;
    v_ = {t_.v + v, t_.v_strides.row, keys.count, s_.v_head}, dv_ = g_.dv + v;
  }

  /// What a head that comes next reads.
  void fetch_for(const KeyHead& next) {
    const std::int64_t group = s_.q_heads / s_.kv_heads;
    ahead_.add(next.k_);
    ahead_.add(next.v_);
    ahead_.add({t_.q + next.at(t_.q_strides, next.head_ * group, 0), t_.q_strides.row, s_.q_len, s_.head});
    ahead_.add({g_.dy + next.at(t_.y_strides, next.head_ * group, 0), t_.y_strides.row, s_.q_len, s_.v_head});
  }

  void run(std::span<const AttentionRows> queries) {
    const TinyAsZero tiny;
    if (!queries.empty()) pack_keys();
    const std::int64_t group = s_.q_heads / s_.kv_heads;
    for (std::int64_t h = head_ * group; h < (head_ + 1) * group; ++h) {
      const AttentionMask<T> mask(s_, t_, keys_, h);
      for (const AttentionRows& rows : queries)
        for (std::int64_t first = 0; first < rows.count;) {
          const AttentionRows part = rows.part(first, together(mask, rows, first));
          add_queries(mask, h, part);
          first += part.count;
        }
    }
    begin_sums({0, 0});
  }

 private:
  /// A few queries of one head.
  struct Block {
    const AttentionRows& queries;
    const AttentionMask<T>& mask;
    DropoutRows<T> dropout;
    HeadRows<T> q, dy;
  };

  std::int64_t at(const AttentionStrides& strides, std::int64_t h, std::int64_t row) const {
    return strides.at(keys_.item, h, row);
  }

  /// Keys and values as right factors, once for all queries.
  void pack_keys() {
    const HeadRows<T> k = gathered<kKeyRows>(k_);
    keys_across_ = packed_across<kKeysAcross>(k);
    values_across_ = packed_across<kValuesAcross>(gathered<kValueRows>(v_));
    const std::int64_t head = padded_columns<T>(s_.head);
    T* along = thread_buffer<T, kKeysAlong>(head * keys_.count);
    for (std::int64_t j = 0; j < keys_.count; j += kDepth)
      pack_along(k.part(j, std::min(kDepth, keys_.count - j)), along + j * head);
    keys_along_ = along;
  }

  /// Before something is added to the gradients of some keys: what to multiply by what they hold. The first block of
  /// queries to see all keys need not find zeros.
  T begin_sums(KeyRange keys) {
    if (has_sums_) return T(1);
    has_sums_ = true;
    if (keys.end - keys.begin == keys_.count) return T(0);
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      std::fill_n(dk_ + j * t_.k_strides.row, s_.head, T(0));
      std::fill_n(dv_ + j * t_.v_strides.row, s_.v_head, T(0));
    }
    return T(1);
  }

  /// What a block of queries sees, from a whole panel on.
  KeyRange seen_by(const AttentionMask<T>& mask, const AttentionRows& queries) const {
    KeyRange keys = mask.seen_by(queries);
    keys.begin = keys.begin / gemm_.panel * gemm_.panel;
    return keys;
  }

  /// How many queries from `first` on make a block: many if already a few of them see all keys.
  std::int64_t together(const AttentionMask<T>& mask, const AttentionRows& rows, std::int64_t first) const {
    const std::int64_t few = std::min(kFewQueries, rows.count - first);
    if (keys_.count > kDepth) return few;
    const KeyRange seen = mask.seen_by(rows.part(first, few));
    return seen.end - seen.begin == keys_.count ? std::min(kQueries, rows.count - first) : few;
  }

  void add_queries(const AttentionMask<T>& mask, std::int64_t h, const AttentionRows& queries) {
    const KeyRange keys = seen_by(mask, queries);
    const std::int64_t q = at(t_.q_strides, h, queries.first);
    const Block block{.queries = queries,
                      .mask = mask,
                      .dropout = DropoutRows<T>(s_, t_.dropout, keys_, h),
                      .q = gathered<kQuery>(HeadRows<T>{t_.q + q, t_.q_strides.row, queries.count, s_.head}),
                      .dy = gathered<kDy>(HeadRows<T>{g_.dy + at(t_.y_strides, h, queries.first), t_.y_strides.row,
                                                      queries.count, s_.v_head})};
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
    stride_ = score_stride(count);
    T* slope = thread_buffer<T, kSlopes>(rows * stride_);
    T* p = weights(block, keys, factors);
    gemm_.multiply(rows, count, s_.v_head, block.dy.data, block.dy.stride, values_across_ + keys.begin * s_.v_head,
                   s_.v_head * gemm_.panel, slope, stride_, {});
    for (std::int64_t i = 0; i < rows; ++i) {
      ahead_.fetch();
      differentiate(block, i, keys, factors[i], p + i * stride_, slope + i * stride_);
    }
    const T beta = begin_sums(keys);
    gemm_.multiply_transposed(count, s_.v_head, rows, p, stride_, packed_along<kPacked>(block.dy), rows * gemm_.panel,
                              dv_ + keys.begin * t_.v_strides.row, t_.v_strides.row, {T(1), beta});
    set_query_gradient(slope, rows, keys, dq);
    gemm_.multiply_transposed(count, s_.head, rows, slope, stride_, packed_along<kPacked>(block.q), rows * gemm_.panel,
                              dk_ + keys.begin * t_.k_strides.row, t_.k_strides.row, {static_cast<T>(s_.scale), beta});
  }

  /// One row: from the gradient of what multiplied the values to that of products of queries and keys, and from weights
  /// to what did multiply.
  void differentiate(const Block& block, std::int64_t i, KeyRange keys, T factor, T* p, T* slope) {
    const std::int64_t count = keys.end - keys.begin;
    const std::int64_t query = block.queries.position(i);
    const bool* kept = t_.dropout.drops ? block.dropout.kept(query, keys) : nullptr;
    if (kept != nullptr) block.dropout.drop(kept, count, T(1), slope);
    score_gradient(p, factor, slope, count);
    if (g_.dmask != nullptr) block.mask.add_gradient(query, keys, slope, g_.dmask);
    const bool at_once = kept != nullptr && std::isfinite(factor);  // what is no number is so where it is dropped, too
    if (kept != nullptr) block.dropout.drop(kept, count, at_once ? factor : T(1), p);
    if (!at_once) affine_run(p, p, count, T(0), factor, T(0));
    if (s_.softcap > 0) uncap(slope, i * stride_, count);
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
    begin_sums({0, 0});
    const bool drops = t_.dropout.drops;
    const bool* kept = drops ? block.dropout.kept(block.queries.position(i), {0, keys_.count}) : nullptr;
    const T share = static_cast<T>(drops ? t_.dropout.scale : 1) / static_cast<T>(keys_.count);
    const T* dy = block.dy.data + i * block.dy.stride;
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      T* dv = dv_ + j * t_.v_strides.row;
      for (std::int64_t c = 0; c < s_.v_head && (!drops || kept[j]); ++c) dv[c] += share * dy[c];
    }
  }

  void set_query_gradient(const T* slope, std::int64_t rows, KeyRange keys, T* dq) const {
    const std::int64_t head = padded_columns<T>(s_.head);
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

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  const AttentionGradients<T>& g_;
  const AttentionRows& keys_;
  std::int64_t head_;
  const GemmKernels<T>& gemm_;
  HeadRows<T> k_, v_;
  T *dk_, *dv_;
  bool has_sums_ = false;  ///< whether dk and dv hold something
  RowsAhead<T> ahead_;
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
  const std::int64_t count = shape.batch * shape.kv_heads;
  parallel_for(count, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const AttentionRows keys{.item = i / shape.kv_heads, .count = shape.kv_len};
      const AttentionRows next{.item = (i + 1) / shape.kv_heads, .count = shape.kv_len};
      KeyHead<T> head(shape, tensors, gradients, keys, i % shape.kv_heads);
      if (i + 1 < count) head.fetch_for({shape, tensors, gradients, next, (i + 1) % shape.kv_heads});
      head.run({&queries, 1});
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
