#include "support/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "backpass/error.hpp"
#include "support/element_cast.hpp"
#include "support/parallel.hpp"
#include "support/simd.hpp"
#include "support/visit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "support/convert.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"
#include "support/bfloat16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace {

// Plain loops: the compiler makes vectors of a block of constant length, for the instruction set of this namespace.
template <class From, class To>
void each(const void* from, void* to, std::int64_t n) {
  constexpr std::int64_t block = 64;
  const auto* x = static_cast<const From*>(from);
  auto* y = static_cast<To*>(to);
  std::int64_t i = 0;
  for (; i + block <= n; i += block) {
#ifndef __clang__  // same-sized elements may share memory, element by element
#pragma GCC ivdep
#endif
    for (std::int64_t j = 0; j < block; ++j) y[i + j] = element_cast<To>(x[i + j]);
  }
  for (; i < n; ++i) y[i] = element_cast<To>(x[i]);
}

// x86 with AVX2 has instructions for float16. They keep the payload of a NaN, so the last elements go the same way.
#if HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
void widen8(const std::uint16_t* x, float* y) {
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}

void narrow8(const float* x, std::uint16_t* y) {
  const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), half);
}

template <class From, class To, void (*kStep)(const From*, To*)>
void by_eights(const void* from, void* to, std::int64_t n) {
  const auto* x = static_cast<const From*>(from);
  auto* y = static_cast<To*>(to);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) kStep(x + i, y + i);
  if (i == n) return;
  From rest[8] = {};
  To result[8];
  std::copy(x + i, x + n, rest);
  kStep(rest, result);
  std::copy(result, result + (n - i), y + i);
}

constexpr ConvertLoop kWidenHalf = by_eights<std::uint16_t, float, widen8>;
constexpr ConvertLoop kNarrowHalf = by_eights<float, std::uint16_t, narrow8>;
#else
constexpr ConvertLoop kWidenHalf = each<Half, float>;
constexpr ConvertLoop kNarrowHalf = each<float, Half>;
#endif

void widen_brain(const void* from, void* to, std::int64_t n) {
  widen_bfloat16(static_cast<const std::uint16_t*>(from), static_cast<float*>(to), n);
}

void narrow_brain(const void* from, void* to, std::int64_t n) {
  narrow_bfloat16(static_cast<const float*>(from), static_cast<std::uint16_t*>(to), n);
}

constexpr unsigned key(DType from, DType to) { return static_cast<unsigned>(from) << 8 | static_cast<unsigned>(to); }

template <DType kFrom, class From, DType kTo, class To>
bool both_ways(unsigned wanted, ConvertLoop& loop) {
  if (wanted == key(kFrom, kTo)) loop = each<Stored<From>, To>;
  if (wanted == key(kTo, kFrom)) loop = each<Stored<To>, From>;
  return loop != nullptr;
}

// The pairs that models use all the time; null for the others.
ConvertLoop frequent_loop(DType from, DType to) {
  using enum DType;
  const unsigned wanted = key(from, to);
  ConvertLoop loop = nullptr;
  if (wanted == key(float16, float32)) return kWidenHalf;
  if (wanted == key(float32, float16)) return kNarrowHalf;
  if (wanted == key(bfloat16, float32)) return widen_brain;
  if (wanted == key(float32, bfloat16)) return narrow_brain;
  const bool found = both_ways<float32, float, float64, double>(wanted, loop) ||
                     both_ways<float32, float, int32, std::int32_t>(wanted, loop) ||
                     both_ways<float32, float, int64, std::int64_t>(wanted, loop) ||
                     both_ways<float32, float, uint8, std::uint8_t>(wanted, loop) ||
                     both_ways<float32, float, int8, std::int8_t>(wanted, loop) ||
                     both_ways<float32, float, boolean, bool>(wanted, loop) ||
                     both_ways<float64, double, int32, std::int32_t>(wanted, loop) ||
                     both_ways<float64, double, int64, std::int64_t>(wanted, loop) ||
                     both_ways<int32, std::int32_t, int64, std::int64_t>(wanted, loop) ||
                     both_ways<int32, std::int32_t, boolean, bool>(wanted, loop) ||
                     both_ways<int64, std::int64_t, boolean, bool>(wanted, loop) ||
                     both_ways<int32, std::int32_t, uint8, std::uint8_t>(wanted, loop) ||
                     both_ways<int32, std::int32_t, int8, std::int8_t>(wanted, loop) ||
                     both_ways<float32, float, int16, std::int16_t>(wanted, loop) ||
                     both_ways<float32, float, uint16, std::uint16_t>(wanted, loop);
  return found ? loop : nullptr;
}

}  // namespace
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
HWY_EXPORT(frequent_loop);

namespace {

template <class From, class To>
void each(const void* from, void* to, std::int64_t n) {
  const auto* x = static_cast<const From*>(from);
  auto* y = static_cast<To*>(to);
  for (std::int64_t i = 0; i < n; ++i) y[i] = element_cast<To>(x[i]);
}

template <int kBytes>
void copy(const void* from, void* to, std::int64_t n) {
  if (from != to && n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * kBytes);
}

ConvertLoop copy_loop(DType dtype) {
  switch (bit_width(dtype)) {
    case 8:
      return copy<1>;
    case 16:
      return copy<2>;
    case 32:
      return copy<4>;
    default:
      return copy<8>;
  }
}

template <class T>
void to_odd(const void* from, void* to, std::int64_t n) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double,
                                  std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  const auto* x = static_cast<const T*>(from);
  auto* y = static_cast<float*>(to);
  for (std::int64_t i = 0; i < n; ++i) y[i] = round_to_odd(static_cast<Wide>(x[i]));
}

// To a float32 that will be rounded once more.
ConvertLoop odd_loop(DType from) {
  switch (from) {
    case DType::float64:
      return to_odd<double>;
    case DType::int32:
      return to_odd<std::int32_t>;
    case DType::int64:
      return to_odd<std::int64_t>;
    case DType::uint32:
      return to_odd<std::uint32_t>;
    case DType::uint64:
      return to_odd<std::uint64_t>;
    default:
      return convert_loop(from, DType::float32);  // exact
  }
}

constexpr std::int64_t kPiece = 512;  // elements; packed elements of a piece end with a byte
constexpr std::int64_t kGrain = 64 * kPiece;

std::int64_t byte_offset(DType dtype, std::int64_t elements) { return elements * bit_width(dtype) / 8; }

}  // namespace

bool is_plain_numeric(DType dtype) { return is_float(dtype) || is_integer(dtype) || dtype == DType::boolean; }

ConvertLoop convert_loop(DType from, DType to) {
  if (!is_plain_numeric(from) || !is_plain_numeric(to)) return nullptr;
  if (from == to) return copy_loop(from);
  ConvertLoop loop = HWY_DYNAMIC_DISPATCH(frequent_loop)(from, to);
  if (loop != nullptr) return loop;
  visit_numeric(from, [&]<class From>() { visit_numeric(to, [&]<class To>() { loop = each<Stored<From>, To>; }); });
  return loop;
}

bool Conversion::supports(DType dtype) { return is_plain_numeric(dtype) || is_small(dtype); }

Conversion::Conversion(DType from, DType to, ConvertOptions options) : from_(from), to_(to) {
  if (!supports(from)) unsupported_dtype(from);
  if (!supports(to)) unsupported_dtype(to);
  if (from == to) return;
  if (is_small(from)) unpack_ = unpack_loop(from);
  if (is_small(to)) pack_ = pack_loop(to, options);
  const DType source = is_small(from) ? plain_type(from) : from;
  const DType target = is_small(to) ? plain_type(to) : to;
  if (pack_ != nullptr && target == DType::float32 && source != DType::float32) {
    convert_ = odd_loop(source);
  } else if (source != target) {
    convert_ = convert_loop(source, target);
  }
}

void Conversion::serial(const void* from, void* to, std::int64_t n) const {
  if (n <= 0) return;
  if (from_ == to_) {
    if (from != to) std::memcpy(to, from, byte_size(from_, n));
  } else if (unpack_ == nullptr && pack_ == nullptr) {
    convert_(from, to, n);
  } else {
    piecewise(static_cast<const std::byte*>(from), static_cast<std::byte*>(to), n);
  }
}

void Conversion::piecewise(const std::byte* from, std::byte* to, std::int64_t n) const {
  alignas(64) std::byte plain[kPiece * 8];
  alignas(64) std::byte converted[kPiece * 8];
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, n - begin);
    const void* source = from + byte_offset(from_, begin);
    void* target = to + byte_offset(to_, begin);
    if (unpack_ != nullptr) {
      void* out = convert_ == nullptr && pack_ == nullptr ? target : plain;
      unpack_(source, out, count);
      source = out;
    }
    if (convert_ != nullptr) {
      void* out = pack_ == nullptr ? target : converted;
      convert_(source, out, count);
      source = out;
    }
    if (pack_ != nullptr) pack_(source, target, count);
  }
}

void Conversion::parallel(const void* from, void* to, std::int64_t n) const {
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    serial(static_cast<const std::byte*>(from) + byte_offset(from_, begin),
           static_cast<std::byte*>(to) + byte_offset(to_, begin), end - begin);
  });
}

}  // namespace backpass
#endif
