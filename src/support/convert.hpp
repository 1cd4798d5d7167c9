// Loops that convert contiguous elements between any two numeric element types (no strings, no complex numbers).
#pragma once

#include <cstdint>

#include "backpass/dtype.hpp"
#include "support/small_floats.hpp"

namespace backpass {

/// from, to: pointers to the first element. They may be the same address when both types have the same size.
using ConvertLoop = void (*)(const void* from, void* to, std::int64_t n);

/// float32, float64, float16, bfloat16, 8- to 64-bit integers, bool.
bool is_plain_numeric(DType);

/// The loop between two plain numeric types; null when either is not one. Every element gets the same result wherever
/// it stands, so callers may cut arrays anywhere.
ConvertLoop convert_loop(DType from, DType to);

/// Formats of 8 bits and fewer: the plain type that holds their values (float32, or int8/uint8).
bool is_small(DType);
DType plain_type(DType small);

struct ConvertOptions {
  bool saturate = true;  ///< float8 formats: out of range becomes the largest number, else infinity or NaN
  Float8E8M0::Round round = Float8E8M0::Round::up;
};

/// small -> plain_type(small), and back. Packed elements begin at the low bits of the first byte.
ConvertLoop unpack_loop(DType small);
ConvertLoop pack_loop(DType small, ConvertOptions options);

/// Any numeric type to any other: unpack, convert, pack, in pieces that stay in the first-level cache.
class Conversion {
 public:
  /// Throws Unsupported for strings and complex numbers.
  Conversion(DType from, DType to, ConvertOptions options = {});

  /// On this thread.
  void serial(const void* from, void* to, std::int64_t n) const;
  /// On all threads.
  void parallel(const void* from, void* to, std::int64_t n) const;

  static bool supports(DType);

 private:
  void piecewise(const std::byte* from, std::byte* to, std::int64_t n) const;

  ConvertLoop unpack_ = nullptr;   // null: `from` is plain
  ConvertLoop convert_ = nullptr;  // null: unpacked elements are what pack_ takes
  ConvertLoop pack_ = nullptr;     // null: `to` is plain
  DType from_;
  DType to_;
};

}  // namespace backpass
