#include "ops/losses/linear_loss.hpp"

#include "ops/losses/linear_loss_chunk.hpp"

namespace backpass {
namespace {

// Fewer rows at once read and write the weights and their gradients more often, more rows no longer gain anything, and
// need more memory. Processor time of loss and gradients, one thread, over that of the best number of rows, as
// benchmarks/chunked_loss.py measures it:
//
//   classes x features     64    128    176    240    304    512 rows at once
//     8192 x 128         16 %    9 %    7 %    7 %    0 %    1 %   AVX-512
//    30522 x 384         19 %    8 %    9 %    6 %    4 %    0 %
//    50257 x 768         25 %    6 %    4 %    4 %    1 %    0 %
//     8192 x 128         21 %   10 %    6 %    4 %    3 %    0 %   AVX2
//    30522 x 384         19 %    3 %    4 %    4 %    2 %    0 %
//
// Two threads share the memory's speed, which weights and their gradients take: 700 rows of 28782 x 200 need 154 ms in
// three chunks, 142 ms in two (one thread: 271 and 265). Hence some 350 rows, but no more scores than kScoreBytes as
// long as there are kLeastRows.
constexpr std::int64_t kScoreBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLeastRows = 176;
constexpr std::int64_t kMostRows = 352;
constexpr std::int64_t kFewRows = 16;

/// What no chunk writes: all of it when no row counts.
template <class T>
void clear(const LinearLossShape& s, const LinearLossData<T>& d, const CountedRows<T>& counted) {
  std::fill_n(d.losses, s.rows, 0.0);
  if (d.dx != nullptr && counted.count < s.rows) std::fill_n(d.dx, s.rows * s.features, T{0});
  if (counted.count > 0) return;
  if (d.dweight != nullptr) std::fill_n(d.dweight, s.classes * s.features, T{0});
  if (d.dbias != nullptr) std::fill_n(d.dbias, s.classes, T{0});
}

std::size_t scratch_for(const LinearLossShape& s, std::size_t element_bytes, std::int64_t rows) {
  Carver sizes(nullptr);
  if (element_bytes == sizeof(float)) {
    Workspace<float>(sizes, s, rows);
  } else {
    Workspace<double>(sizes, s, rows);
  }
  return sizes.used();
}

std::int64_t best_rows(const LinearLossShape& s, std::size_t element_bytes) {
  const std::int64_t class_bytes = std::max<std::int64_t>(1, s.classes) * static_cast<std::int64_t>(element_bytes);
  return std::clamp(kScoreBytes / class_bytes, kLeastRows, kMostRows) / kTileColumns * kTileColumns;
}

}  // namespace

std::int64_t rows_at_once(const LinearLossShape& s, std::size_t element_bytes) {
  if (s.rows_at_once > 0) {
    const std::int64_t rows = std::min(std::max<std::int64_t>(1, s.rows), s.rows_at_once);
    return (rows + kTileColumns - 1) / kTileColumns * kTileColumns;
  }
  std::int64_t rows = std::min(std::max<std::int64_t>(1, s.rows), best_rows(s, element_bytes));
  // All scores at once would need no more; they come without lists of rows, labels, weights and losses.
  const std::size_t whole = static_cast<std::size_t>(s.rows * s.classes) * element_bytes;
  const std::size_t lists = static_cast<std::size_t>(s.rows) * (3 * sizeof(std::int64_t) + element_bytes);
  while (rows > kFewRows && scratch_for(s, element_bytes, rows) + lists > whole) {
    rows = (rows - 1) / kTileColumns * kTileColumns;
  }
  return rows;
}

std::size_t linear_loss_scratch(const LinearLossShape& s, std::size_t element_bytes) {
  return scratch_for(s, element_bytes, rows_at_once(s, element_bytes));
}

template <class T>
void linear_loss(const LinearLossShape& s, const LinearLossData<T>& data, const CountedRows<T>& counted,
                 std::byte* scratch) {
  clear(s, data, counted);
  const std::int64_t most = rows_at_once(s, sizeof(T));
  const std::int64_t chunks = (counted.count + most - 1) / most;
  Carver memory(scratch);
  const Workspace<T> work(memory, s, most);
  std::int64_t begin = 0;
  for (std::int64_t c = 1; c <= chunks; ++c) {
    // About the same number of rows in each, and whole groups of columns.
    const std::int64_t even = c * counted.count / chunks;
    const std::int64_t whole = (even + kTileColumns - 1) / kTileColumns * kTileColumns;
    const std::int64_t end = c == chunks ? counted.count : std::min(whole, begin + most);
    LinearLossChunk<T> chunk(s, data, counted, work, begin, end);
    chunk.forward();
    if (s.wants_gradients) chunk.backward();
    begin = end;
  }
}

template void linear_loss(const LinearLossShape&, const LinearLossData<float>&, const CountedRows<float>&, std::byte*);
template void linear_loss(const LinearLossShape&, const LinearLossData<double>&, const CountedRows<double>&,
                          std::byte*);

}  // namespace backpass
