// Element types of tensors. The numbers are those of ONNX's TensorProto.DataType, so no translation table exists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace backpass {

enum class DType : std::uint8_t {
  undefined = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  string = 8,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  complex64 = 14,
  complex128 = 15,
  bfloat16 = 16,
  float8e4m3fn = 17,
  float8e4m3fnuz = 18,
  float8e5m2 = 19,
  float8e5m2fnuz = 20,
  uint4 = 21,
  int4 = 22,
  float4e2m1 = 23,
  float8e8m0 = 24,
  uint2 = 25,
  int2 = 26,
  float6e2m3 = 27,
  float6e3m2 = 28,
};

/// True for a number that ONNX assigns to a tensor element type.
bool is_known_dtype(std::int64_t onnx_code);

/// "float32", "int64", ... as numpy spells them, else as ml_dtypes does: "bfloat16", "float8_e4m3fn", "int4".
std::string_view name_of(DType);

/// Bits one element takes in a packed buffer: 6 for float6e2m3, 4 for int4, 2 for int2, 0 for strings (which are not
/// plain bytes).
int bit_width(DType);

/// Bytes of `count` elements; sub-byte types are packed, the last byte padded. Strings: count * sizeof(std::string).
/// Throws InvalidInput when the product does not fit in 63 bits.
std::size_t byte_size(DType, std::int64_t count);

bool is_float(DType);    ///< float16, bfloat16, float32, float64 (not the 8-bit and smaller storage formats)
bool is_integer(DType);  ///< signed and unsigned 8 to 64 bits (not bool, not sub-byte)
bool is_signed_integer(DType);
bool is_sub_byte(DType);  ///< 6-, 4- and 2-bit types, packed from the low bits up without gaps

}  // namespace backpass
