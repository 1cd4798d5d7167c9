#include "ops/indexing/reach.hpp"

#include <algorithm>
#include <bit>

#include "ops/indexing/mask_bits.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kBits = 64;

/// The first n bits (all of them from 64 on).
std::uint64_t low_bits(std::int64_t n) { return n >= kBits ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; }

void read_bits(const Sight& sight, BitRange hidden, std::int64_t b, std::int64_t query, KeySet& row) {
  const std::int64_t at = b * sight.batch_stride + query * sight.keys;
  const std::byte* from = sight.mask + byte_size(sight.dtype, at);
  if (sight.keys != 1) return bits_outside(sight.dtype, hidden, from, sight.keys, row.words().data());
  std::uint64_t seen = 0;
  bits_outside(sight.dtype, hidden, from, 1, &seen);
  if (seen != 0) {
    row.fill();
  } else {
    row.clear();
  }
}

}  // namespace

std::int64_t KeySet::count() const {
  std::int64_t n = 0;
  for (const std::uint64_t word : words_) n += std::popcount(word);
  return n;
}

std::int64_t KeySet::first() const {
  for (std::size_t w = 0; w < words_.size(); ++w) {
    if (words_[w] != 0) return static_cast<std::int64_t>(w) * kBits + std::countr_zero(words_[w]);
  }
  return length_;
}

std::int64_t KeySet::last() const {
  for (std::size_t w = words_.size(); w-- > 0;) {
    if (words_[w] != 0) return static_cast<std::int64_t>(w) * kBits + kBits - 1 - std::countl_zero(words_[w]);
  }
  return -1;
}

bool KeySet::insert(const KeySet& keys, std::int64_t n) {
  std::uint64_t added = 0;
  for (std::size_t w = 0; w < words_.size() && n > 0; ++w, n -= kBits) {
    const std::uint64_t seen = keys.words_[w] & low_bits(n);
    added |= seen & ~words_[w];
    words_[w] |= seen;
  }
  return added != 0;
}

void KeySet::fill() {
  std::int64_t rest = length_;
  for (std::uint64_t& word : words_) {
    word = low_bits(rest);
    rest -= kBits;
  }
}

void KeySet::clear() { std::fill(words_.begin(), words_.end(), 0); }

Reach::Reach(std::span<const Sight> sights, std::int64_t length) : length_(length) {
  for (const Sight& sight : sights) looks_.push_back({sight, KeySet(length), KeySet(length), KeySet(length)});
}

void Reach::complete(std::int64_t b, KeySet& needed) {
  for (Look& look : looks_) begin(look, b, needed);
  bool grew = true;
  while (grew && needed.count() < length_) {
    grew = false;
    for (Look& look : looks_) grew |= follow(look, b, needed);
  }
}

/// Whether a query sees nothing, of those that see alike.
bool Reach::sees_none(const Look& look, std::int64_t query) const {
  return look.row.first() >= (look.sight.causal ? query + 1 : length_);
}

void Reach::read_row(const Sight& sight, std::int64_t b, std::int64_t query, KeySet& row) const {
  if (sight.mask == nullptr) return row.fill();
  read_bits(sight, hiding(sight.dtype), b, query, row);
}

void Reach::read_fallback(const Sight& sight, std::int64_t b, std::int64_t query, KeySet& row) const {
  if (!sight.unseen_sees_all) return row.clear();
  if (sight.mask == nullptr || sight.dtype == DType::boolean) return row.fill();
  read_bits(sight, minus_infinity(sight.dtype), b, query, row);
}

/// Of queries of another tensor who share a row it is not known how many they are: the last may see every key.
void Reach::begin(Look& look, std::int64_t b, KeySet& needed) const {
  if (look.sight.queries == 1) {
    read_row(look.sight, b, 0, look.row);
    read_fallback(look.sight, b, 0, look.fallback);
    if (!look.sight.outside) return;
    needed.insert(look.row, length_);
    if (sees_none(look, 0)) needed.insert(look.fallback, length_);
    return;
  }
  look.done.clear();
  if (!look.sight.outside) return;
  for (std::int64_t query = 0; query < look.sight.queries; ++query) follow_query(look, b, query, needed);
}

/// Returns whether a key was added.
bool Reach::follow(Look& look, std::int64_t b, KeySet& needed) const {
  if (look.sight.outside) return false;
  if (look.sight.queries == 1) return follow_alike(look, needed);
  bool grew = false;
  for (std::size_t w = 0; w < needed.words().size(); ++w) {
    while (const std::uint64_t rest = needed.words()[w] & ~look.done.words()[w]) {
      const std::int64_t query = static_cast<std::int64_t>(w) * kBits + std::countr_zero(rest);
      look.done.insert(query);
      grew |= follow_query(look, b, query, needed);
    }
  }
  return grew;
}

/// The last query sees most, and the first is the one that may see nothing.
bool Reach::follow_alike(const Look& look, KeySet& needed) const {
  const std::int64_t last = needed.last();
  if (last < 0) return false;
  bool grew = needed.insert(look.row, look.sight.causal ? last + 1 : length_);
  if (sees_none(look, needed.first())) grew |= needed.insert(look.fallback, length_);
  return grew;
}

bool Reach::follow_query(Look& look, std::int64_t b, std::int64_t query, KeySet& needed) const {
  const std::int64_t end = look.sight.causal ? std::min(query + 1, length_) : length_;
  read_row(look.sight, b, query, look.row);
  if (look.row.first() < end) return needed.insert(look.row, end);
  read_fallback(look.sight, b, query, look.fallback);
  return needed.insert(look.fallback, length_);
}

}  // namespace backpass
