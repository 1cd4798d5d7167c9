#include "kernels/tile_convert.hpp"

#include "support/half.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_convert.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "support/bfloat16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Same {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams&) {
    return x;
  }
};

struct NotZero {
  template <class T>
  static HWY_INLINE bool call(T x, const TileParams&) {
    return x != T(0);
  }
};

struct WidenHalf {
  static HWY_INLINE float call(std::uint16_t x, const TileParams&) { return Half::to_float(x); }
};

struct NarrowHalf {
  static HWY_INLINE std::uint16_t call(float x, const TileParams&) { return Half::from_float(x); }
};

void widen_brain(const void* const* in, void* out, std::int64_t n, const TileParams&) {
  widen_bfloat16(static_cast<const std::uint16_t*>(in[0]), static_cast<float*>(out), n);
}

void narrow_brain(const void* const* in, void* out, std::int64_t n, const TileParams&) {
  narrow_bfloat16(static_cast<const float*>(in[0]), static_cast<std::uint16_t*>(out), n);
}

// x86 with AVX2 has instructions for float16; elsewhere the portable code serves.
#if HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
void widen_half(const void* const* in, void* out, std::int64_t n, const TileParams& p) {
  const auto* from = static_cast<const std::uint16_t*>(in[0]);
  auto* to = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  const void* rest = from + i;
  elements<WidenHalf, float, std::uint16_t>(&rest, to + i, n - i, p);
}

void narrow_half(const void* const* in, void* out, std::int64_t n, const TileParams& p) {
  const auto* from = static_cast<const float*>(in[0]);
  auto* to = static_cast<std::uint16_t*>(out);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  const void* rest = from + i;
  elements<NarrowHalf, std::uint16_t, float>(&rest, to + i, n - i, p);
}
#else
constexpr TileLoop widen_half = elements<WidenHalf, float, std::uint16_t>;
constexpr TileLoop narrow_half = elements<NarrowHalf, std::uint16_t, float>;
#endif

// From any number or bool to To.
template <class To, class F = Same>
TileLoop from_number(DType from) {
  switch (from) {
    case DType::float32:
      return elements<F, To, float>;
    case DType::float64:
      return elements<F, To, double>;
    case DType::boolean:
      return elements<NotZero, To, std::uint8_t>;
    case DType::uint8:
      return elements<F, To, std::uint8_t>;
    case DType::int8:
      return elements<F, To, std::int8_t>;
    case DType::uint16:
      return elements<F, To, std::uint16_t>;
    case DType::int16:
      return elements<F, To, std::int16_t>;
    case DType::uint32:
      return elements<F, To, std::uint32_t>;
    case DType::int32:
      return elements<F, To, std::int32_t>;
    case DType::uint64:
      return elements<F, To, std::uint64_t>;
    case DType::int64:
      return elements<F, To, std::int64_t>;
    default:
      return nullptr;
  }
}

TileLoop convert(DType from, DType to) {
  if (from == DType::float16) return to == DType::float32 ? widen_half : nullptr;
  if (from == DType::bfloat16) return to == DType::float32 ? widen_brain : nullptr;
  switch (to) {
    case DType::float16:
      return from == DType::float32 ? narrow_half : nullptr;
    case DType::bfloat16:
      return from == DType::float32 ? narrow_brain : nullptr;
    case DType::float32:
      return from_number<float>(from);
    case DType::float64:
      return from_number<double>(from);
    case DType::boolean:
      return from_number<std::uint8_t, NotZero>(from);
    case DType::int64:
      return is_float(from) ? nullptr : from_number<std::int64_t>(from);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
HWY_EXPORT(convert);

TileLoop tile_convert_loop(DType from, DType to) { return HWY_DYNAMIC_DISPATCH(convert)(from, to); }

namespace {

template <std::size_t Size>
void copy_elements(const void* const* in, void* out, std::int64_t n, const TileParams&) {
  if (in[0] != out) std::memcpy(out, in[0], static_cast<std::size_t>(n) * Size);
}

}  // namespace

TileLoop tile_copy_loop(DType type) {
  switch (bit_width(type)) {
    case 8:
      return copy_elements<1>;
    case 16:
      return copy_elements<2>;
    case 32:
      return copy_elements<4>;
    case 64:
      return copy_elements<8>;
    default:
      return nullptr;
  }
}

}  // namespace backpass
#endif
