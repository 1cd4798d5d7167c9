#include "backpass/dtype.hpp"

#include <array>
#include <limits>

#include "backpass/error.hpp"

namespace backpass {
namespace {

enum class Family : std::uint8_t { other, floating, signed_integer, unsigned_integer };

struct Row {
  std::string_view name;
  int bits;
  Family family;
};

// Indexed by DType.
constexpr std::array<Row, 29> kRows{{
    {"undefined", 0, Family::other},
    {"float32", 32, Family::floating},
    {"uint8", 8, Family::unsigned_integer},
    {"int8", 8, Family::signed_integer},
    {"uint16", 16, Family::unsigned_integer},
    {"int16", 16, Family::signed_integer},
    {"int32", 32, Family::signed_integer},
    {"int64", 64, Family::signed_integer},
    {"string", 0, Family::other},
    {"bool", 8, Family::other},
    {"float16", 16, Family::floating},
    {"float64", 64, Family::floating},
    {"uint32", 32, Family::unsigned_integer},
    {"uint64", 64, Family::unsigned_integer},
    {"complex64", 64, Family::other},
    {"complex128", 128, Family::other},
    {"bfloat16", 16, Family::floating},
    {"float8_e4m3fn", 8, Family::other},
    {"float8_e4m3fnuz", 8, Family::other},
    {"float8_e5m2", 8, Family::other},
    {"float8_e5m2fnuz", 8, Family::other},
    {"uint4", 4, Family::other},
    {"int4", 4, Family::other},
    {"float4_e2m1fn", 4, Family::other},
    {"float8_e8m0fnu", 8, Family::other},
    {"uint2", 2, Family::other},
    {"int2", 2, Family::other},
    {"float6_e2m3fn", 6, Family::other},
    {"float6_e3m2fn", 6, Family::other},
}};

const Row& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  ensure(index < kRows.size(), "no element type has the number ", index);
  return kRows[index];
}

}  // namespace

bool is_known_dtype(std::int64_t onnx_code) {
  return onnx_code > 0 && onnx_code < static_cast<std::int64_t>(kRows.size());
}

std::string_view name_of(DType dtype) { return row(dtype).name; }

int bit_width(DType dtype) { return row(dtype).bits; }

std::size_t byte_size(DType dtype, std::int64_t count) {
  if (count < 0) fail("element count: got ", count, ", expected 0 or more");
  const std::int64_t bits = dtype == DType::string ? 8 * sizeof(std::string) : bit_width(dtype);
  // Whole groups of 8 elements take `bits` bytes each, so the product stays far from overflow until the last step.
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(count / 8, bits, &bytes) ||
      __builtin_add_overflow(bytes, (count % 8 * bits + 7) / 8, &bytes)) {
    fail("size of ", count, " ", name_of(dtype), " elements: got more than ", std::numeric_limits<std::int64_t>::max(),
         " bytes");
  }
  return static_cast<std::size_t>(bytes);
}

bool is_float(DType dtype) { return row(dtype).family == Family::floating; }

bool is_integer(DType dtype) {
  return row(dtype).family == Family::signed_integer || row(dtype).family == Family::unsigned_integer;
}

bool is_signed_integer(DType dtype) { return row(dtype).family == Family::signed_integer; }

bool is_sub_byte(DType dtype) { return bit_width(dtype) > 0 && bit_width(dtype) < 8; }

}  // namespace backpass
