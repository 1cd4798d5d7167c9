// Which keys a query may see, and what masks do to its scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/attention_rows.hpp"

namespace backpass {

struct KeyRange {
  std::int64_t begin, end;
};

/// What hides keys of one batch item from one head. Queries go by their positions.
template <class T>
class AttentionMask {
 public:
  AttentionMask(const AttentionShape& shape, const AttentionTensors<T>& tensors, const AttentionRows& keys,
                std::int64_t h)
      : s_(shape), t_(tensors), keys_(keys), first_(keys.item * t_.mask_strides.batch + h * t_.mask_strides.head) {
    offset_ = t_.kv_lengths != nullptr ? t_.kv_lengths[keys.item] - s_.q_len : s_.past;
  }

  /// Keys that a query may see, mask tensors aside. Both ends grow with its position.
  KeyRange visible(std::int64_t query) const {
    const std::int64_t position = offset_ + query;
    KeyRange r{0, keys_.count};
    if (s_.left_window >= 0) r.begin = std::max(r.begin, keys_.before(position - s_.left_window));
    if (s_.right_window >= 0 && s_.right_window < s_.kv_len) end_before(r, position + s_.right_window + 1);
    if (s_.causal) end_before(r, position + 1);
    if (t_.kv_lengths != nullptr) end_before(r, t_.kv_lengths[keys_.item]);
    if (t_.added_mask != nullptr || t_.chosen_mask != nullptr) end_before(r, t_.mask_len);
    return r;
  }

  /// Keys from the first that some of these queries may see to the last one, which a mask may tell, too.
  KeyRange seen_by(const AttentionRows& queries) const {
    KeyRange r{visible(queries.position(0)).begin, visible(queries.position(queries.count - 1)).end};
    if (t_.chosen_mask == nullptr || t_.mask_step != 1 || keys_.places != nullptr) return r;
    std::int64_t end = r.begin;
    for (std::int64_t i = queries.count; i-- > 0 && end < r.end;) {  // of a causal mask the last query sees most
      const bool* row = t_.chosen_mask + first_ + queries.position(i) * t_.mask_strides.row + keys_.start;
      if (!any_of(row + end, r.end - end)) continue;
      for (end = r.end; !row[end - 1];) --end;
    }
    r.end = std::max(r.begin, end);
    return r;
  }

  /// Scores of a query for the keys in a range: what it must not see counts as -inf, whatever the product is.
  void apply(std::int64_t query, KeyRange keys, T* row) const {
    const T none = -std::numeric_limits<T>::infinity();
    const KeyRange seen = visible(query);
    const std::int64_t begin = std::clamp(seen.begin, keys.begin, keys.end);
    const std::int64_t end = std::clamp(seen.end, begin, keys.end);
    std::fill(row, row + (begin - keys.begin), none);
    std::fill(row + (end - keys.begin), row + (keys.end - keys.begin), none);
    const std::int64_t first = first_ + query * t_.mask_strides.row;
    if (t_.chosen_mask != nullptr) {
      choose_scores(row + (begin - keys.begin), entries(t_.chosen_mask + first, begin, end), end - begin);
    } else if (t_.added_mask != nullptr) {
      add_mask(row + (begin - keys.begin), entries(t_.added_mask + first, begin, end), end - begin);
    }
  }

  /// The gradient of a query's masked scores, added to that of the mask.
  void add_gradient(std::int64_t query, KeyRange keys, const T* slope, T* dmask) const {
    T* row = dmask + first_ + query * t_.mask_strides.row;
    if (keys_.places == nullptr && t_.mask_step == 1) {
      for (std::int64_t j = keys.begin; j < keys.end; ++j) row[keys_.start + j] += slope[j - keys.begin];
    } else {
      for (std::int64_t j = keys.begin; j < keys.end; ++j)
        row[keys_.position(j) * t_.mask_step] += slope[j - keys.begin];
    }
  }

 private:
  static constexpr int kEntries = 721;

  /// Whether one is true; eight at a time.
  static bool any_of(const bool* flags, std::int64_t count) {
    std::int64_t j = 0;
    for (std::uint64_t some = 0; j + 8 <= count; j += 8) {
      std::memcpy(&some, flags + j, 8);
      if (some != 0) return true;
    }
    return std::find(flags + j, flags + count, true) != flags + count;
  }

  void end_before(KeyRange& r, std::int64_t position) const { r.end = std::min(r.end, keys_.before(position)); }

  /// A row of the mask at the positions of some keys. Valid until the next call on this thread.
  template <class Entry>
  const Entry* entries(const Entry* row, std::int64_t begin, std::int64_t end) const {
    if (keys_.places == nullptr && t_.mask_step == 1) return row + keys_.start + begin;
    Entry* found = thread_buffer<Entry, kEntries>(end - begin);
    for (std::int64_t j = begin; j < end; ++j) found[j - begin] = row[keys_.position(j) * t_.mask_step];
    return found;
  }

  const AttentionShape& s_;
  const AttentionTensors<T>& t_;
  const AttentionRows& keys_;
  std::int64_t first_, offset_;
};

}  // namespace backpass
