#include "kernels/attention_grad.hpp"

#include <algorithm>
#include <limits>

#include "kernels/activation.hpp"
#include "kernels/attention_mask.hpp"
#include "kernels/gemm.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kQueries = 64;  // rows of scores that are worked on together, each over all keys

enum Slot : int { kWeights, kSlopes, kCapped };

/// One key head of one batch item, with all query heads that share it: only they add to its gradients.
template <class T>
class KeyHead {
 public:
  KeyHead(const AttentionShape& shape, const AttentionTensors<T>& tensors, const AttentionGradients<T>& gradients,
          std::int64_t b, std::int64_t head)
      : s_(shape), t_(tensors), g_(gradients), b_(b), head_(head) {
    const std::int64_t k = at(t_.k_strides, head, 0);
    const std::int64_t v = at(t_.v_strides, head, 0);
    k_ = t_.k + k, v_ = t_.v + v, dk_ = g_.dk + k, dv_ = g_.dv + v;
  }

  void run() {
    for (std::int64_t j = 0; j < s_.kv_len; ++j) {
      std::fill_n(dk_ + j * t_.k_strides.row, s_.head, T(0));
      std::fill_n(dv_ + j * t_.v_strides.row, s_.v_head, T(0));
    }
    const std::int64_t group = s_.q_heads / s_.kv_heads;
    for (std::int64_t h = head_ * group; h < (head_ + 1) * group; ++h) {
      const AttentionMask<T> mask(s_, t_, b_, h);
      for (std::int64_t first = 0; first < s_.q_len; first += kQueries) add_queries(mask, h, first);
    }
  }

 private:
  std::int64_t at(const AttentionStrides& strides, std::int64_t h, std::int64_t row) const {
    return b_ * strides.batch + h * strides.head + row * strides.row;
  }

  void add_queries(const AttentionMask<T>& mask, std::int64_t h, std::int64_t first) {
    const std::int64_t rows = std::min(kQueries, s_.q_len - first);
    const KeyRange keys{mask.visible(first).begin, mask.visible(first + rows - 1).end};
    const std::int64_t count = keys.end - keys.begin;
    const T* q = t_.q + at(t_.q_strides, h, first);
    T* dq = g_.dq + at(t_.q_strides, h, first);
    if (count <= 0) {
      for (std::int64_t i = 0; i < rows; ++i) std::fill_n(dq + i * t_.q_strides.row, s_.head, T(0));
      return;
    }
    const T* dy = g_.dy + at(t_.y_strides, h, first);
    const std::int64_t ldq = t_.q_strides.row, ldk = t_.k_strides.row, ldv = t_.v_strides.row, ldy = t_.y_strides.row;
    const T* k = k_ + keys.begin * ldk;
    T* p = weights(mask, first, rows, keys, q);
    T* slope = thread_buffer<T, kFirstSlot + kSlopes>(rows * count);
    gemm<T>(false, true, rows, count, s_.v_head, T(1), dy, ldy, v_ + keys.begin * ldv, ldv, T(0), slope, count);
    gemm<T>(true, false, count, s_.v_head, rows, T(1), p, count, dy, ldy, T(1), dv_ + keys.begin * ldv, ldv);
    for (std::int64_t i = 0; i < rows; ++i) score_gradient(p + i * count, slope + i * count, i * count, count);
    const auto scale = static_cast<T>(s_.scale);
    gemm<T>(false, false, rows, s_.head, count, scale, slope, count, k, ldk, T(0), dq, ldq);
    gemm<T>(true, false, count, s_.head, rows, scale, slope, count, q, ldq, T(1), dk_ + keys.begin * ldk, ldk);
  }

  /// Probabilities of a block of queries, zero throughout a row that sees no key.
  T* weights(const AttentionMask<T>& mask, std::int64_t first, std::int64_t rows, KeyRange keys, const T* q) {
    const std::int64_t count = keys.end - keys.begin;
    T* p = thread_buffer<T, kFirstSlot + kWeights>(rows * count);
    gemm<T>(false, true, rows, count, s_.head, static_cast<T>(s_.scale), q, t_.q_strides.row,
            k_ + keys.begin * t_.k_strides.row, t_.k_strides.row, T(0), p, count);
    if (s_.softcap > 0) cap(p, rows * count);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = p + i * count;
      mask.apply(first + i, keys, row);
      T largest = -std::numeric_limits<T>::infinity();
      T rescale = 1;
      const T sum = continue_softmax(row, count, largest, rescale);
      const T factor = sum == 0 ? T(0) : 1 / sum;
      for (std::int64_t j = 0; j < count; ++j) row[j] = factor == 0 ? T(0) : row[j] * factor;
    }
    return p;
  }

  /// Keeps tanh(score / softcap), which the derivative needs.
  void cap(T* scores, std::int64_t count) {
    const auto limit = static_cast<T>(s_.softcap);
    for (std::int64_t j = 0; j < count; ++j) scores[j] /= limit;
    activate<T>({ActivationKind::tanh, 0, 0}, kNoClip<T>, scores, count);
    capped_ = thread_buffer<T, kFirstSlot + kCapped>(count);
    std::copy_n(scores, count, capped_);
    for (std::int64_t j = 0; j < count; ++j) scores[j] *= limit;
  }

  /// From the gradient of one row of probabilities, in `slope`, to that of its products.
  void score_gradient(const T* p, T* slope, std::int64_t offset, std::int64_t count) const {
    T mean = 0;
    for (std::int64_t j = 0; j < count; ++j) mean += p[j] * slope[j];
    for (std::int64_t j = 0; j < count; ++j) slope[j] = p[j] * (slope[j] - mean);
    if (s_.softcap <= 0) return;
    const T* tanh = capped_ + offset;
    for (std::int64_t j = 0; j < count; ++j) slope[j] *= 1 - tanh[j] * tanh[j];
  }

  static constexpr int kFirstSlot = 700;  // apart from those of the matrix product

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  const AttentionGradients<T>& g_;
  std::int64_t b_, head_;
  const T *k_, *v_;
  T *dk_, *dv_;
  T* capped_ = nullptr;
};

}  // namespace

template <class T>
void attention_backward(const AttentionShape& shape, const AttentionTensors<T>& tensors,
                        const AttentionGradients<T>& gradients) {
  const std::int64_t work = shape.q_len * shape.kv_len * (shape.head + shape.v_head);
  parallel_for(shape.batch * shape.kv_heads, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      KeyHead<T>(shape, tensors, gradients, i / shape.kv_heads, i % shape.kv_heads).run();
  });
}

template void attention_backward(const AttentionShape&, const AttentionTensors<float>&,
                                 const AttentionGradients<float>&);
template void attention_backward(const AttentionShape&, const AttentionTensors<double>&,
                                 const AttentionGradients<double>&);

}  // namespace backpass
