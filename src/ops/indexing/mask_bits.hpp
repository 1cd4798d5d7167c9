// Rows of an attention mask as sets of bits: which keys they let through.
#pragma once

#include <cstdint>

#include "backpass/dtype.hpp"

namespace backpass {

/// Elements whose bits, as an unsigned number, lie in [low, low + span]: floats below a negative bound are such a
/// range.
struct BitRange {
  std::uint64_t low = 0;
  std::uint64_t span = 0;
};

/// What hides a key: false, or floats that no score can make up for (-1e30, in float16 its lowest number, and below).
BitRange hiding(DType dtype);

/// What hides a key even from queries that see no other: -inf.
BitRange minus_infinity(DType dtype);

/// Bit j of `words`: element j of the row is not in the range. Bits from n on, in the last word, are 0.
void bits_outside(DType dtype, BitRange range, const void* row, std::int64_t n, std::uint64_t* words);

}  // namespace backpass
