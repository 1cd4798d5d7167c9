// Dropout of the probabilities of attention, drawn row by row wherever they are needed, and nowhere kept.
#pragma once

#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/attention_mask.hpp"
#include "ops/random/dropout_kernel.hpp"

namespace backpass {

/// Probabilities of one head for keys of one batch item. Queries go by their positions.
template <class T>
class DropoutRows {
 public:
  DropoutRows(const AttentionShape& shape, const AttentionDropout& dropout, const AttentionRows& keys, std::int64_t h)
      : dropout_(dropout),
        keys_(keys),
        first_((keys.item * shape.q_heads + h) * shape.q_len * shape.kv_len),
        row_(shape.kv_len) {}

  /// Whether a query keeps the probabilities of the keys in a range. Valid until the next call on this thread.
  const bool* kept(std::int64_t query, KeyRange keys) const {
    const std::int64_t count = keys.end - keys.begin;
    if (count == 0) return nullptr;
    const std::int64_t begin = keys_.position(keys.begin);
    const std::int64_t span = keys_.places == nullptr ? count : keys_.position(keys.end - 1) + 1 - begin;
    bool* room = thread_buffer<bool, kRoom>(span + 3);
    const bool* drawn = draw_kept(dropout_.random, first_ + query * row_ + begin, span, dropout_.threshold, room);
    return span == count ? drawn : picked(drawn, begin, keys);
  }

  /// Those that are kept grow by what Dropout says, and by `factor`.
  void drop(const bool* kept, std::int64_t count, T factor, T* row) const {
    keep_where(kept, count, static_cast<T>(dropout_.scale) * factor, row, row);
  }

 private:
  static constexpr int kRoom = 720;
  static constexpr int kPicked = 722;

  const bool* picked(const bool* drawn, std::int64_t begin, KeyRange keys) const {
    bool* found = thread_buffer<bool, kPicked>(keys.end - keys.begin);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) found[j - keys.begin] = drawn[keys_.position(j) - begin];
    return found;
  }

  const AttentionDropout& dropout_;
  const AttentionRows& keys_;
  std::int64_t first_, row_;
};

}  // namespace backpass
