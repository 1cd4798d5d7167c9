#include "ops/attention/ragged_rows.hpp"

#include <algorithm>
#include <tuple>

#include "backpass/error.hpp"

namespace backpass {
namespace {

/// The rows from `begin` on that can be worked on together.
AttentionRows piece_at(const PlacedRows& rows, std::int64_t begin, std::int64_t most) {
  const std::int64_t item = rows.place(begin) / rows.length;
  const std::int64_t base = item * rows.length;
  const std::int64_t last = std::min(rows.count - begin, most) + begin;
  bool follows = true;
  std::int64_t end = begin + 1;
  for (; end < last; ++end) {
    const std::int64_t step = rows.place(end) - rows.place(end - 1);
    if (step < 0 || rows.place(end) >= base + rows.length) break;
    follows = follows && step == 1;
  }
  if (follows) return {item, begin, end - begin, nullptr, rows.place(begin) - base};
  return {item, begin, end - begin, rows.places + begin, base};
}

}  // namespace

void check_places(std::string_view label, std::string_view name, const PlacedRows& rows, std::int64_t items,
                  bool ascending) {
  const std::int64_t all = items * rows.length;
  if (rows.are_all && rows.count != all)
    fail(label, " ", name, ": got none with ", rows.count, " rows, expected ", all,
         " rows as extents say; give places");
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t place = rows.place(i);
    if (place < 0 || place >= all)
      fail(label, " ", name, "[", i, "]: got ", place, ", expected a place in [0, ", all, ")");
    if (ascending && i > 0 && place <= rows.place(i - 1))
      fail(label, " ", name, "[", i, "]: got ", place, " after ", rows.place(i - 1), ", expected ascending places");
  }
}

std::span<AttentionRows> cut_rows(const PlacedRows& rows, std::int64_t most, AttentionRows* to) {
  std::size_t count = 0;
  for (std::int64_t row = 0; row < rows.count; row += to[count++].count) to[count] = piece_at(rows, row, most);
  const std::span<AttentionRows> pieces{to, count};
  auto order = [](const AttentionRows& a, const AttentionRows& b) {
    return std::tie(a.item, a.first) < std::tie(b.item, b.first);
  };
  if (!std::is_sorted(pieces.begin(), pieces.end(), order)) std::sort(pieces.begin(), pieces.end(), order);
  return pieces;
}

std::span<AttentionSequence> join_rows(std::span<const AttentionRows> queries, std::span<const AttentionRows> keys,
                                       bool whole, AttentionSequence* to) {
  std::size_t count = 0;
  auto k = keys.begin();
  auto q = queries.begin();
  while (q != queries.end() || (whole && k != keys.end())) {
    while (!whole && k != keys.end() && k->item < q->item) ++k;
    const bool keys_first = q == queries.end() || (k != keys.end() && k->item < q->item);
    const std::int64_t item = keys_first ? k->item : q->item;
    AttentionRows seen{.item = item};
    if (k != keys.end() && k->item == item) seen = *k;
    auto end = q;
    while (end != queries.end() && end->item == item && (whole || end == q)) ++end;
    to[count++] = {seen, {q, end}};
    q = end;
    if (whole && seen.count > 0) ++k;
  }
  return {to, count};
}

}  // namespace backpass
