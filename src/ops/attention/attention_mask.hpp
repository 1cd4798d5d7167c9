// Which keys a query may see, and what masks do to its scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/attention_rows.hpp"

namespace backpass {

struct KeyRange {
  std::int64_t begin, end;
};

/// The masks of one head.
template <class T>
class AttentionMask {
 public:
  AttentionMask(const AttentionShape& shape, const AttentionTensors<T>& tensors, std::int64_t b, std::int64_t h)
      : s_(shape), t_(tensors), b_(b), h_(h) {
    offset_ = t_.kv_lengths != nullptr ? t_.kv_lengths[b] - s_.q_len : s_.past;
  }

  /// Keys that query i may see, mask tensors aside. Both ends grow with i.
  KeyRange visible(std::int64_t i) const {
    const std::int64_t position = offset_ + i;
    KeyRange r{0, s_.kv_len};
    if (s_.left_window >= 0) r.begin = std::max(r.begin, position - s_.left_window);
    if (s_.right_window >= 0 && s_.right_window < s_.kv_len) r.end = std::min(r.end, position + s_.right_window + 1);
    if (s_.causal) r.end = std::min(r.end, position + 1);
    if (t_.kv_lengths != nullptr) r.end = std::min(r.end, t_.kv_lengths[b_]);
    if (t_.added_mask != nullptr || t_.chosen_mask != nullptr) r.end = std::min(r.end, t_.mask_len);
    return r;
  }

  /// Scores of query i for the keys in a range: what it must not see counts as -inf, whatever the product is.
  void apply(std::int64_t i, KeyRange keys, T* row) const {
    const T none = -std::numeric_limits<T>::infinity();
    const KeyRange seen = visible(i);
    const std::int64_t begin = std::clamp(seen.begin, keys.begin, keys.end);
    const std::int64_t end = std::clamp(seen.end, begin, keys.end);
    std::fill(row, row + (begin - keys.begin), none);
    std::fill(row + (end - keys.begin), row + (keys.end - keys.begin), none);
    const std::int64_t mask_row = b_ * t_.mask_strides.batch + h_ * t_.mask_strides.head + i * t_.mask_strides.row;
    if (t_.chosen_mask != nullptr) {
      choose_scores(row + (begin - keys.begin), t_.chosen_mask + mask_row + begin, end - begin);
    } else if (t_.added_mask != nullptr) {
      add_mask(row + (begin - keys.begin), t_.added_mask + mask_row + begin, end - begin);
    }
  }

 private:
  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  std::int64_t b_, h_, offset_;
};

}  // namespace backpass
