// Dropout of the probabilities of attention, drawn row by row wherever they are needed, and nowhere kept.
#pragma once

#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/attention_mask.hpp"
#include "ops/random/dropout_kernel.hpp"

namespace backpass {

/// The probabilities of one head.
template <class T>
class DropoutRows {
 public:
  DropoutRows(const AttentionShape& shape, const AttentionDropout& dropout, std::int64_t b, std::int64_t h)
      : dropout_(dropout), first_((b * shape.q_heads + h) * shape.q_len * shape.kv_len), keys_(shape.kv_len) {}

  /// Whether query i keeps the probabilities of the keys in a range. Valid until the next call on this thread.
  const bool* kept(std::int64_t i, KeyRange keys) const {
    const std::int64_t count = keys.end - keys.begin;
    bool* room = thread_buffer<bool, kRoom>(count + 3);
    return draw_kept(dropout_.random, first_ + i * keys_ + keys.begin, count, dropout_.threshold, room);
  }

  void drop(const bool* kept, std::int64_t count, T* row) const {
    keep_where(kept, count, static_cast<T>(dropout_.scale), row, row);
  }

 private:
  static constexpr int kRoom = 720;

  const AttentionDropout& dropout_;
  std::int64_t first_, keys_;
};

}  // namespace backpass
