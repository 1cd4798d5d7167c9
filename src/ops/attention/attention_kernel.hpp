// Scaled dot-product attention, computed block by block so that the matrix of all scores never exists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "support/philox.hpp"

namespace backpass {

/// Elements between neighbours along each axis; the innermost axis is contiguous.
struct AttentionStrides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;

  std::int64_t at(std::int64_t item, std::int64_t h, std::int64_t i) const { return item * batch + h * head + i * row; }
};

/// Added to any score worth the name, it is all that is left; beside another score its softmax is 0.
inline constexpr double kLowestScore = -1e30;

/// What a query that may attend no key gives.
enum class Unseen : std::uint8_t {
  zero,
  nan,  ///< as Softmax does
  all   ///< the mean of all values there are
};

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;  ///< divides q_heads: neighbouring query heads share a key head
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t head = 0;    ///< elements of a query and of a key
  std::int64_t v_head = 0;  ///< elements of a value
  std::int64_t past = 0;    ///< keys before the first query's own
  double scale = 1;
  double softcap = 0;  ///< 0: none
  bool causal = false;
  std::int64_t left_window = -1;  ///< -1: unbounded
  std::int64_t right_window = -1;
  Unseen unseen = Unseen::zero;
  /// Added to the scores of keys that a boolean mask does not choose. Less than infinite, it leaves such keys to
  /// queries that have no other.
  double lowest = -std::numeric_limits<double>::infinity();
};

/// Rows of one batch item that lie behind each other, at ascending positions of it.
struct AttentionRows {
  std::int64_t item = 0;
  std::int64_t first = 0;  ///< where they lie: a number of AttentionStrides::row
  std::int64_t count = 0;
  const std::int64_t* places = nullptr;  ///< one per row; null: positions follow each other
  std::int64_t start = 0;                ///< position of the first row; with places, what each of them is above it

  std::int64_t position(std::int64_t i) const { return places == nullptr ? start + i : places[i] - start; }
  /// How many rows lie before a position; of positions that follow each other, how many would.
  std::int64_t before(std::int64_t position) const {
    if (places == nullptr) return position - start;
    return std::lower_bound(places, places + count, position + start) - places;
  }
  AttentionRows part(std::int64_t begin, std::int64_t size) const {
    if (places != nullptr) return {item, first + begin, size, places + begin, start};
    return {item, first + begin, size, nullptr, start + begin};
  }
};

/// Keys of one batch item, and queries that see no others.
struct AttentionSequence {
  AttentionRows keys;
  std::span<const AttentionRows> queries;
};

inline constexpr std::int64_t kQueryRows = 128;  ///< queries that are worked on together

/// Which probabilities are dropped: those whose random bits, by their place in [batch, q_heads, q_len, kv_len], are
/// below the threshold. The others are multiplied by `scale`.
struct AttentionDropout {
  bool drops = false;
  Philox random{0, 0};
  std::uint32_t threshold = 0;
  double scale = 1;
};

enum class ScoreStage : std::uint8_t { product, capped, masked, probability };

template <class T>
struct AttentionTensors {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  T* y = nullptr;
  AttentionStrides q_strides, k_strides, v_strides, y_strides;

  const T* added_mask = nullptr;      ///< added to the scores; at most one mask is given
  const bool* chosen_mask = nullptr;  ///< true: the key takes part
  AttentionStrides mask_strides;
  std::int64_t mask_step = 1;  ///< from key to key; 0: one entry for all
  std::int64_t mask_len = 0;   ///< keys from here on take no part (when there is a mask)

  /// Valid keys per batch item, each in [0, kv_len]; queries are then the last ones of them. May be null.
  const std::int64_t* kv_lengths = nullptr;

  AttentionDropout dropout;

  T* scores = nullptr;  ///< [batch, q_heads, q_len, kv_len] at `stage`, or null
  ScoreStage stage = ScoreStage::product;
};

template <class T>
void attention(const AttentionShape& shape, const AttentionTensors<T>& tensors);

/// The same for some rows of the batch, behind each other in q, k, v and y (whose strides from item to item are 0).
/// Masks and random numbers are those of the whole; `sequences` have at most kQueryRows queries each.
template <class T>
void attention(const AttentionShape& shape, const AttentionTensors<T>& tensors,
               std::span<const AttentionSequence> sequences);

/// Operations of one head for one of some sequences, on average.
std::int64_t mean_work(const AttentionShape& shape, std::span<const AttentionSequence> sequences);

/// One row of softmax that is continued block by block: x[i] = exp(x[i] - m) where m is the larger of `running_max` and
/// the largest x (which it becomes). Returns their sum; `rescale` is what earlier sums have to be multiplied by.
float continue_softmax(float* x, std::int64_t count, float& running_max, float& rescale);
double continue_softmax(double* x, std::int64_t count, double& running_max, double& rescale);

}  // namespace backpass
