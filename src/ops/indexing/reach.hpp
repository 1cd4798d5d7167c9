// Which keys of a sequence somebody needs: those that needed queries see, which are queries in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backpass/dtype.hpp"

namespace backpass {

/// Some of the keys of one sequence, as bits.
class KeySet {
 public:
  explicit KeySet(std::int64_t length) : length_(length), words_(static_cast<std::size_t>((length + 63) / 64)) {}

  std::span<std::uint64_t> words() { return words_; }
  std::span<const std::uint64_t> words() const { return words_; }
  std::int64_t count() const;
  std::int64_t first() const;  ///< the length where there is none
  std::int64_t last() const;   ///< -1 where there is none

  void insert(std::int64_t key) { words_[static_cast<std::size_t>(key / 64)] |= std::uint64_t{1} << (key % 64); }
  bool insert(const KeySet& keys, std::int64_t n);  ///< those below n; returns whether there was a new one
  void fill();
  void clear();

 private:
  std::int64_t length_;
  std::vector<std::uint64_t> words_;
};

/// What queries see of the keys of their sequence, in one head.
struct Sight {
  const std::byte* mask = nullptr;  ///< null: nothing is hidden
  DType dtype = DType::boolean;
  std::int64_t queries = 1;  ///< rows of the mask; 1: one for all queries
  std::int64_t keys = 1;     ///< elements of a row; 1: one for all keys
  std::int64_t batch_stride = 0;
  bool causal = false;           ///< keys behind the query are hidden as well
  bool outside = false;          ///< the queries are rows of another tensor, and all are needed
  bool unseen_sees_all = false;  ///< a query that would see no key sees all but those at -inf

  bool operator==(const Sight&) const = default;
};

/// Completes sets of needed keys, one sequence after another.
class Reach {
 public:
  Reach(std::span<const Sight> sights, std::int64_t length);

  /// Adds to the needed keys of sequence b all that follow from them.
  void complete(std::int64_t b, KeySet& needed);

 private:
  /// A sight, and what is known of the sequence at hand.
  struct Look {
    Sight sight;
    KeySet row;       // what queries see who see alike, the causal cut aside
    KeySet fallback;  // what they see where that is nothing
    KeySet done;      // queries that were looked at
  };

  bool sees_none(const Look& look, std::int64_t query) const;
  void read_row(const Sight& sight, std::int64_t b, std::int64_t query, KeySet& row) const;
  void read_fallback(const Sight& sight, std::int64_t b, std::int64_t query, KeySet& row) const;
  void begin(Look& look, std::int64_t b, KeySet& needed) const;
  bool follow(Look& look, std::int64_t b, KeySet& needed) const;
  bool follow_alike(const Look& look, KeySet& needed) const;
  bool follow_query(Look& look, std::int64_t b, std::int64_t query, KeySet& needed) const;

  std::int64_t length_;
  std::vector<Look> looks_;
};

}  // namespace backpass
