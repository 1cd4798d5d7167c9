// Loops of tile functions, compiled once per instruction set: include after hwy/foreach_target.h.
//
// Two ways to declare a function, both as a struct with a static `call`:
//   of vectors    template <class D, class V> static HWY_INLINE V call(D d, V x, const TileParams& p)
//   of elements   template <class T> static HWY_INLINE R call(T x, const TileParams& p)
// The second is for integers, comparisons and plain arithmetic: the compiler makes vectors of it. Its R and T say what
// is stored: bool tensors are bytes (std::uint8_t).

// Include guard that toggles with the instruction set.
#if defined(BACKPASS_KERNELS_TILE_LOOPS_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_KERNELS_TILE_LOOPS_HPP_
#undef BACKPASS_KERNELS_TILE_LOOPS_HPP_
#else
#define BACKPASS_KERNELS_TILE_LOOPS_HPP_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/independent.hpp"
#include "kernels/tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements per step of the element loops: a constant multiple of every vector length, so that the compiler vectorises
// without a remainder.
inline constexpr std::int64_t kElementBlock = 64;

template <class F, class R, class... T>
HWY_INLINE void element_loop(R* out, std::int64_t n, const TileParams& params, const T*... in) {
  const TileParams p = params;
  std::int64_t i = 0;
  for (; i + kElementBlock <= n; i += kElementBlock) {
    BACKPASS_INDEPENDENT
    for (std::int64_t j = 0; j < kElementBlock; ++j) out[i + j] = static_cast<R>(F::call(in[i + j]..., p));
  }
  for (; i < n; ++i) out[i] = static_cast<R>(F::call(in[i]..., p));
}

template <class F, class R, class... T, std::size_t... I>
HWY_INLINE void element_loop(const void* const* in, void* out, std::int64_t n, const TileParams& params,
                             std::index_sequence<I...>) {
  element_loop<F, R, T...>(static_cast<R*>(out), n, params, static_cast<const T*>(in[I])...);
}

/// R = F(T...) element by element.
template <class F, class R, class... T>
void elements(const void* const* in, void* out, std::int64_t n, const TileParams& params) {
  element_loop<F, R, T...>(in, out, n, params, std::index_sequence_for<T...>{});
}

/// T = F(T, ...) by vectors, `Arity` operands.
template <class F, class T, int Arity>
void vectors(const void* const* in, void* out, std::int64_t n, const TileParams& params) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const TileParams p = params;
  const T* a = static_cast<const T*>(in[0]);
  const T* b = Arity > 1 ? static_cast<const T*>(in[1]) : nullptr;
  const T* c = Arity > 2 ? static_cast<const T*>(in[2]) : nullptr;
  T* o = static_cast<T*>(out);
  const auto step = [&](const T* x, const T* y, const T* z, T* r) HWY_ATTR {
    if constexpr (Arity == 1) {
      hn::StoreU(F::call(d, hn::LoadU(d, x), p), d, r);
    } else if constexpr (Arity == 2) {
      hn::StoreU(F::call(d, hn::LoadU(d, x), hn::LoadU(d, y), p), d, r);
    } else {
      hn::StoreU(F::call(d, hn::LoadU(d, x), hn::LoadU(d, y), hn::LoadU(d, z), p), d, r);
    }
  };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(a + i, b + i, c + i, o + i);
  if (i == n) return;
  // The rest goes through a padded copy: nothing outside of the tensors may be touched.
  HWY_ALIGN T rest[3][HWY_MAX_BYTES / sizeof(T)] = {};
  const auto bytes = static_cast<std::size_t>(n - i) * sizeof(T);
  std::memcpy(rest[0], a + i, bytes);
  if constexpr (Arity > 1) std::memcpy(rest[1], b + i, bytes);
  if constexpr (Arity > 2) std::memcpy(rest[2], c + i, bytes);
  step(rest[0], rest[1], rest[2], rest[0]);
  std::memcpy(o + i, rest[0], bytes);
}

// ---- Choosing the loop of a function of elements by type.

/// float32 and float64, all operands and the result of one type.
template <class F, int Arity>
TileLoop vector_loop(DType t) {
  switch (t) {
    case DType::float32:
      return vectors<F, float, Arity>;
    case DType::float64:
      return vectors<F, double, Arity>;
    default:
      return nullptr;
  }
}

template <class F, class T, class R, int Arity>
constexpr TileLoop element_loop_of() {
  if constexpr (Arity == 1) return elements<F, R, T>;
  if constexpr (Arity == 2) return elements<F, R, T, T>;
  if constexpr (Arity == 3) return elements<F, R, T, T, T>;
}

// Result type of a loop over T: T itself, or bytes for predicates.
template <class T, bool Predicate>
using LoopResult = std::conditional_t<Predicate, std::uint8_t, T>;

template <class F, int Arity, bool Predicate = false>
TileLoop real_loop(DType t) {
  switch (t) {
    case DType::float32:
      return element_loop_of<F, float, LoopResult<float, Predicate>, Arity>();
    case DType::float64:
      return element_loop_of<F, double, LoopResult<double, Predicate>, Arity>();
    default:
      return nullptr;
  }
}

template <class F, int Arity, bool Predicate = false>
TileLoop unsigned_loop(DType t) {
  switch (t) {
    case DType::uint8:
      return element_loop_of<F, std::uint8_t, LoopResult<std::uint8_t, Predicate>, Arity>();
    case DType::uint16:
      return element_loop_of<F, std::uint16_t, LoopResult<std::uint16_t, Predicate>, Arity>();
    case DType::uint32:
      return element_loop_of<F, std::uint32_t, LoopResult<std::uint32_t, Predicate>, Arity>();
    case DType::uint64:
      return element_loop_of<F, std::uint64_t, LoopResult<std::uint64_t, Predicate>, Arity>();
    default:
      return nullptr;
  }
}

template <class F, int Arity, bool Predicate = false>
TileLoop signed_loop(DType t) {
  switch (t) {
    case DType::int8:
      return element_loop_of<F, std::int8_t, LoopResult<std::int8_t, Predicate>, Arity>();
    case DType::int16:
      return element_loop_of<F, std::int16_t, LoopResult<std::int16_t, Predicate>, Arity>();
    case DType::int32:
      return element_loop_of<F, std::int32_t, LoopResult<std::int32_t, Predicate>, Arity>();
    case DType::int64:
      return element_loop_of<F, std::int64_t, LoopResult<std::int64_t, Predicate>, Arity>();
    default:
      return nullptr;
  }
}

inline DType unsigned_of(DType t) {
  switch (t) {
    case DType::int8:
      return DType::uint8;
    case DType::int16:
      return DType::uint16;
    case DType::int32:
      return DType::uint32;
    case DType::int64:
      return DType::uint64;
    default:
      return t;
  }
}

/// Integers whose arithmetic wraps around: signed types use the loops of the unsigned ones.
template <class F, int Arity>
TileLoop wrapping_loop(DType t) {
  return unsigned_loop<F, Arity>(unsigned_of(t));
}

/// Reals and all integers.
template <class F, int Arity, bool Predicate = false>
TileLoop number_loop(DType t) {
  if (TileLoop loop = real_loop<F, Arity, Predicate>(t)) return loop;
  if (TileLoop loop = signed_loop<F, Arity, Predicate>(t)) return loop;
  return unsigned_loop<F, Arity, Predicate>(t);
}

}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#endif  // toggle

#ifndef BACKPASS_TILE_FUNCTION
/// After the last instruction set (HWY_ONCE): `BACKPASS_TILE_FUNCTION(add, "Add", 2)` makes the TileFunction `add_tile`
/// of the function `TileLoop add(DType)` that every instruction set's namespace defines.
#define BACKPASS_TILE_FUNCTION(function, name, operands, ...)                                                \
  HWY_EXPORT(function);                                                                                      \
  static TileLoop function##_dispatch(DType t) { return HWY_DYNAMIC_DISPATCH(function)(t); }                 \
  static const TileFunction function##_tile{name, operands, function##_dispatch __VA_OPT__(, ) __VA_ARGS__}; \
  static const RegisterTileFunction function##_registered { function##_tile }
#endif
