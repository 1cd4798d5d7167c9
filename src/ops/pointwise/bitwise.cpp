// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot, BitShift.
#include <type_traits>

#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/bitwise.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "support/printable.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct And {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return static_cast<T>(a ^ b);
  }
};

struct Not {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return static_cast<T>(~a);
  }
};

// A shift by a negative number or by all bits and more leaves only what is shifted in.
struct ShiftLeft {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return b < static_cast<T>(8 * sizeof(T)) ? static_cast<T>(a << b) : T(0);
  }
};

struct ShiftRight {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    constexpr T kBits = 8 * sizeof(T);
    const bool inside = b >= 0 && b < kBits;
    return static_cast<T>(a >> (inside ? b : static_cast<T>(kBits - 1)) >> (inside || std::is_signed_v<T> ? 0 : 1));
  }
};

TileLoop bitwise_and(DType t) { return wrapping_loop<And, 2>(t); }
TileLoop bitwise_or(DType t) { return wrapping_loop<Or, 2>(t); }
TileLoop bitwise_xor(DType t) { return wrapping_loop<Xor, 2>(t); }
TileLoop bitwise_not(DType t) { return wrapping_loop<Not, 1>(t); }
TileLoop shift_left(DType t) { return wrapping_loop<ShiftLeft, 2>(t); }
TileLoop shift_right(DType t) {
  TileLoop loop = unsigned_loop<ShiftRight, 2>(t);
  return loop != nullptr ? loop : signed_loop<ShiftRight, 2>(t);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(bitwise_and, "BitwiseAnd", 2);
BACKPASS_TILE_FUNCTION(bitwise_or, "BitwiseOr", 2);
BACKPASS_TILE_FUNCTION(bitwise_xor, "BitwiseXor", 2);
BACKPASS_TILE_FUNCTION(bitwise_not, "BitwiseNot", 1);
BACKPASS_TILE_FUNCTION(shift_left, "ShiftLeft", 2);
BACKPASS_TILE_FUNCTION(shift_right, "ShiftRight", 2);

const RegisterPointwise bitwise_and_op{
    {.name = "BitwiseAnd", .since = 18, .doc = "Bits set in both, broadcasting.", .types = types::integers},
    {.function = &bitwise_and_tile}};
const RegisterPointwise bitwise_or_op{
    {.name = "BitwiseOr", .since = 18, .doc = "Bits set in either, broadcasting.", .types = types::integers},
    {.function = &bitwise_or_tile}};
const RegisterPointwise bitwise_xor_op{
    {.name = "BitwiseXor", .since = 18, .doc = "Bits set in one only, broadcasting.", .types = types::integers},
    {.function = &bitwise_xor_tile}};
const RegisterPointwise bitwise_not_op{
    {.name = "BitwiseNot", .since = 18, .doc = "Bits inverted.", .types = types::integers},
    {.function = &bitwise_not_tile}};

void infer_shift(InferContext& c) {
  std::string direction = c.node.attr_string("direction");
  c.require(direction == "LEFT" || direction == "RIGHT", "attribute direction: got ", printable(direction),
            ", expected LEFT or RIGHT");
  infer_tile(c);
}

TileRegister emit_shift(TileEmit& e) {
  const TileFunction& shift = e.node.attr_string("direction") == "LEFT" ? shift_left_tile : shift_right_tile;
  return e.builder.apply(shift, {e.inputs[0], e.inputs[1]});
}

const RegisterPointwise bit_shift_op{
    {.name = "BitShift",
     .since = 28,
     .doc = "X shifted by Y bits, broadcasting; signed numbers keep their sign to the right.",
     .inputs = {2, 2},
     .types = types::integers,
     .infer = infer_shift},
    {.emit = emit_shift}};

}  // namespace
}  // namespace backpass
#endif
