// Rows of a batch that were taken from their places: which of them belong together.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ops/attention/attention_kernel.hpp"

namespace backpass {

/// Rows of [items, length].
struct PlacedRows {
  bool are_all;  ///< none was left out, and there are no places
  const std::int64_t* places;
  std::int64_t count;
  std::int64_t length;

  std::int64_t place(std::int64_t row) const { return are_all ? row : places[row]; }
};

/// Fails unless all places are in [0, items * length) and, where they have to, ascend.
void check_places(std::string_view label, std::string_view name, const PlacedRows& rows, std::int64_t items,
                  bool ascending);

/// Neighbours of one item whose positions do not fall, at most `most` together, sorted by item. `to` has room for as
/// many as there are rows.
std::span<AttentionRows> cut_rows(const PlacedRows& rows, std::int64_t most, AttentionRows* to);

/// The keys of each item with its queries, all (`whole`) or those of one piece. Both are sorted by item, and keys of an
/// item are one piece. `to` has room for as many as there are pieces.
std::span<AttentionSequence> join_rows(std::span<const AttentionRows> queries, std::span<const AttentionRows> keys,
                                       bool whole, AttentionSequence* to);

}  // namespace backpass
