// Which keys a query may see, and what masks do to its scores.
#pragma once

#include <algorithm>
#include <cstdint>
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
      : s_(shape),
        t_(tensors),
        keys_(keys),
        kv_head_(h / (shape.q_heads / shape.kv_heads)),
        first_(keys.item * t_.mask_strides.batch + h * t_.mask_strides.head) {
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
    if (t_.mask_step != 1 || keys_.places != nullptr || r.begin >= r.end) return r;
    if (t_.chosen_mask != nullptr) r.end = end_of_shown(t_.chosen_mask, queries, r);
    if (t_.added_mask != nullptr) r.end = end_of_shown(t_.added_mask, queries, r);
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
    T* scores = row + (begin - keys.begin);
    if (t_.added_mask != nullptr) add_mask(scores, entries(t_.added_mask + first, begin, end), end - begin);
    if (t_.chosen_mask == nullptr) return;
    const bool* chosen = entries(t_.chosen_mask + first, begin, end);
    if (!lowers()) return choose_scores(scores, chosen, end - begin);
    lower_scores(scores, chosen, static_cast<T>(s_.lowest), end - begin);
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

  bool lowers() const { return s_.lowest != -std::numeric_limits<double>::infinity(); }
  /// Whether it does not matter if queries are shown other keys than those that are left out.
  bool hides() const { return t_.chosen_mask != nullptr && !lowers() && s_.unseen != Unseen::nan; }

  /// Whether a query is shown a key by an entry of the mask.
  static bool shows(bool chosen) { return chosen; }
  static bool shows(T added) { return !(added <= static_cast<T>(kLowestScore)); }
  static bool any_shows(const T* added, std::int64_t count) {
    return any_above(added, count, static_cast<T>(kLowestScore));
  }
  static bool any_shows(const bool* chosen, std::int64_t count) { return any_chosen(chosen, count); }

  /// The end of the last key that some of these queries are shown. Other keys, if they are not hidden altogether, weigh
  /// exactly nothing beside one that is shown, which each query must then have.
  template <class Entry>
  std::int64_t end_of_shown(const Entry* mask, const AttentionRows& queries, KeyRange r) const {
    std::int64_t end = r.begin;
    for (std::int64_t i = is_same_for(queries) ? 1 : queries.count; i-- > 0 && end < r.end;) {
      const std::int64_t query = queries.position(i);
      const Entry* row = mask + first_ + query * t_.mask_strides.row + keys_.start;
      if (!hides() && !is_shown_some(row, visible(query))) return r.end;
      if (!any_shows(row + end, r.end - end)) continue;  // of a causal mask the last query sees most
      for (end = r.end; !shows(row[end - 1]);) --end;
    }
    return hides() || are_numbers({end, r.end}) ? end : r.end;
  }

  bool is_same_for(const AttentionRows& queries) const {
    const KeyRange first = visible(queries.position(0)), last = visible(queries.position(queries.count - 1));
    return t_.mask_strides.row == 0 && first.begin == last.begin && first.end == last.end;
  }

  template <class Entry>
  static bool is_shown_some(const Entry* row, KeyRange r) {
    return r.begin < r.end && (shows(row[r.begin]) || any_shows(row + r.begin, r.end - r.begin));
  }

  /// Nothing times these keys and values is nothing.
  bool are_numbers(KeyRange keys) const {
    const std::int64_t count = keys.end - keys.begin;
    auto first = [&](const T* rows, const AttentionStrides& s) {
      return rows + keys_.item * s.batch + kv_head_ * s.head + (keys_.first + keys.begin) * s.row;
    };
    return all_finite(first(t_.k, t_.k_strides), count, s_.head, t_.k_strides.row) &&
           all_finite(first(t_.v, t_.v_strides), count, s_.v_head, t_.v_strides.row);
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
  std::int64_t kv_head_, first_, offset_;
};

}  // namespace backpass
