#include "ops/attention/attention_kernel.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/activation.hpp"
#include "kernels/gemm.hpp"
#include "ops/attention/attention_dropout.hpp"
#include "ops/attention/attention_mask.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

// Queries and keys of one block of scores: both products run at full speed, and the block stays in the second-level
// cache.
constexpr std::int64_t kQueries = 128;
constexpr std::int64_t kKeys = 256;

/// A block of queries of one head.
template <class T>
class QueryBlock {
 public:
  QueryBlock(const AttentionShape& shape, const AttentionTensors<T>& tensors, std::int64_t b, std::int64_t h,
             std::int64_t first)
      : s_(shape),
        t_(tensors),
        mask_(shape, tensors, b, h),
        dropout_(shape, tensors.dropout, b, h),
        b_(b),
        h_(h),
        first_(first),
        rows_(std::min(kQueries, shape.q_len - first)) {
    const std::int64_t kv_head = h / (shape.q_heads / shape.kv_heads);
    q_ = t_.q + at(t_.q_strides, b, h, first);
    k_ = t_.k + at(t_.k_strides, b, kv_head, 0);
    v_ = t_.v + at(t_.v_strides, b, kv_head, 0);
    y_ = t_.y + at(t_.y_strides, b, h, first);
  }

  void run() {
    std::fill_n(max_, rows_, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, rows_, T(0));
    // Scores that are asked for are computed for all keys; otherwise keys that no query of the block sees are left out.
    const bool record = t_.scores != nullptr;
    const KeyRange keys = record ? KeyRange{0, s_.kv_len} : KeyRange{visible(0).begin, visible(rows_ - 1).end};
    const std::int64_t step = record ? std::max<std::int64_t>(s_.kv_len, 1) : kKeys;
    if (keys.begin >= keys.end)
      for (std::int64_t i = 0; i < rows_; ++i) std::fill_n(y_ + i * t_.y_strides.row, s_.v_head, T(0));
    for (std::int64_t j = keys.begin; j < keys.end; j += step)
      add_keys({j, std::min(keys.end, j + step)}, j == keys.begin);
    for (std::int64_t i = 0; i < rows_; ++i) finish(i);
  }

 private:
  static std::int64_t at(const AttentionStrides& strides, std::int64_t b, std::int64_t h, std::int64_t row) {
    return b * strides.batch + h * strides.head + row * strides.row;
  }

  KeyRange visible(std::int64_t i) const { return mask_.visible(first_ + i); }

  void add_keys(KeyRange keys, bool is_first) {
    const std::int64_t count = keys.end - keys.begin;
    T* scores = score_buffer(rows_ * count);
    gemm<T>(false, true, rows_, count, s_.head, static_cast<T>(s_.scale), q_, t_.q_strides.row,
            k_ + keys.begin * t_.k_strides.row, t_.k_strides.row, T(0), scores, count);
    for (std::int64_t i = 0; i < rows_; ++i) weigh(i, keys, scores + i * count, is_first);
    gemm<T>(false, false, rows_, s_.v_head, count, T(1), scores, count, v_ + keys.begin * t_.v_strides.row,
            t_.v_strides.row, is_first ? T(0) : T(1), y_, t_.y_strides.row);
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
    mask_.apply(first_ + i, keys, row);
    record(ScoreStage::masked, i, row);
    T rescale = 1;
    const T sum = continue_softmax(row, count, max_[i], rescale);
    sum_[i] = sum_[i] * rescale + sum;
    if (!is_first && rescale != 1) scale_output(i, rescale);
    record(ScoreStage::probability, i, row);
    if (t_.dropout.drops) dropout_.drop(dropout_.kept(first_ + i, keys), count, row);
  }

  void record(ScoreStage stage, std::int64_t i, const T* row) const {
    if (t_.scores == nullptr || t_.stage != stage) return;
    T* to = t_.scores + ((b_ * s_.q_heads + h_) * s_.q_len + first_ + i) * s_.kv_len;
    std::copy_n(row, s_.kv_len, to);
    if (stage == ScoreStage::probability && sum_[i] != 0)
      for (std::int64_t j = 0; j < s_.kv_len; ++j) to[j] /= sum_[i];
  }

  void scale_output(std::int64_t i, T factor) {
    T* y = y_ + i * t_.y_strides.row;
    for (std::int64_t j = 0; j < s_.v_head; ++j) y[j] *= factor;
  }

  void finish(std::int64_t i) {
    const bool is_zero = !s_.unseen_is_nan || s_.kv_len == 0;
    if (sum_[i] == 0 && is_zero) return std::fill_n(y_ + i * t_.y_strides.row, s_.v_head, T(0)), void();
    scale_output(i, 1 / sum_[i]);
  }

  static T* score_buffer(std::int64_t count) {
    thread_local std::vector<T> buffer;
    if (static_cast<std::int64_t>(buffer.size()) < count) buffer.resize(static_cast<std::size_t>(count));
    return buffer.data();
  }

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  AttentionMask<T> mask_;
  DropoutRows<T> dropout_;
  std::int64_t b_, h_, first_, rows_;
  const T *q_, *k_, *v_;
  T* y_;
  T max_[kQueries];  ///< largest score of each row so far
  T sum_[kQueries];  ///< sum of the row's weights so far
};

}  // namespace

template <class T>
void attention(const AttentionShape& shape, const AttentionTensors<T>& tensors) {
  if (shape.q_len == 0 || shape.batch == 0 || shape.q_heads == 0) return;
  const std::int64_t blocks = (shape.q_len + kQueries - 1) / kQueries;
  const std::int64_t work = std::min(kQueries, shape.q_len) * shape.kv_len * (shape.head + shape.v_head);
  parallel_for(shape.batch * shape.q_heads * blocks, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t bh = i / blocks;
      QueryBlock<T>(shape, tensors, bh / shape.q_heads, bh % shape.q_heads, i % blocks * kQueries).run();
    }
  });
}

template void attention(const AttentionShape&, const AttentionTensors<float>&);
template void attention(const AttentionShape&, const AttentionTensors<double>&);

}  // namespace backpass
