// Packing and unpacking of the formats of 8 bits and fewer.
#include <cstddef>

#include "backpass/error.hpp"
#include "support/convert.hpp"

namespace backpass {
namespace {

template <int kBits>
struct Packed;

template <>
struct Packed<8> {
  static unsigned get(const std::uint8_t* data, std::int64_t i) { return data[i]; }
  template <class F>
  static void fill(std::uint8_t* data, std::int64_t n, const F& code) {
    for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<std::uint8_t>(code(i));
  }
};

// 2 and 4 bits: no element crosses a byte.
template <int kBits>
struct Packed {
  static constexpr int kPerByte = 8 / kBits;
  static constexpr unsigned kMask = (1U << kBits) - 1;

  static unsigned get(const std::uint8_t* data, std::int64_t i) {
    return (static_cast<unsigned>(data[i / kPerByte]) >> (i % kPerByte * kBits)) & kMask;
  }
  template <class F>
  static void fill(std::uint8_t* data, std::int64_t n, const F& code) {
    const std::int64_t whole = n / kPerByte;
    for (std::int64_t b = 0; b < whole; ++b) {
      unsigned byte = 0;
      for (int k = 0; k < kPerByte; ++k) byte |= (code(b * kPerByte + k) & kMask) << (k * kBits);
      data[b] = static_cast<std::uint8_t>(byte);
    }
    if (n % kPerByte == 0) return;
    unsigned byte = 0;
    for (std::int64_t i = whole * kPerByte; i < n; ++i) byte |= (code(i) & kMask) << (i % kPerByte * kBits);
    data[whole] = static_cast<std::uint8_t>(byte);
  }
};

// Four elements in three bytes, from the low bits up.
template <>
struct Packed<6> {
  static unsigned get(const std::uint8_t* data, std::int64_t i) {
    const std::int64_t bit = 6 * i;
    const int shift = static_cast<int>(bit % 8);
    unsigned window = data[bit / 8];
    if (shift > 2) window |= static_cast<unsigned>(data[bit / 8 + 1]) << 8;
    return (window >> shift) & 0x3fU;
  }
  template <class F>
  static void fill(std::uint8_t* data, std::int64_t n, const F& code) {
    unsigned window = 0;
    int held = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      window |= (code(i) & 0x3fU) << held;
      for (held += 6; held >= 8; held -= 8, window >>= 8) *data++ = static_cast<std::uint8_t>(window);
    }
    if (held > 0) *data = static_cast<std::uint8_t>(window);
  }
};

template <class Format, int kBits>
void unpack_float(const void* from, void* to, std::int64_t n) {
  const auto* codes = static_cast<const std::uint8_t*>(from);
  auto* values = static_cast<float*>(to);
  for (std::int64_t i = 0; i < n; ++i) values[i] = kDecoded<Format>[Packed<kBits>::get(codes, i)];
}

template <class Format, bool kSaturate>
void pack_float(const void* from, void* to, std::int64_t n) {
  const auto* values = static_cast<const float*>(from);
  Packed<Format::kBits>::fill(static_cast<std::uint8_t*>(to), n,
                              [=](std::int64_t i) -> unsigned { return Format::encode(values[i], kSaturate); });
}

template <bool kSaturate, Float8E8M0::Round kRound>
void pack_e8m0(const void* from, void* to, std::int64_t n) {
  const auto* values = static_cast<const float*>(from);
  Packed<8>::fill(static_cast<std::uint8_t*>(to), n,
                  [=](std::int64_t i) -> unsigned { return Float8E8M0::encode(values[i], kSaturate, kRound); });
}

template <int kBits, bool kSigned>
void unpack_integer(const void* from, void* to, std::int64_t n) {
  const auto* codes = static_cast<const std::uint8_t*>(from);
  auto* values = static_cast<std::uint8_t*>(to);
  constexpr unsigned top = kSigned ? 1U << (kBits - 1) : 0U;
  for (std::int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<std::uint8_t>((Packed<kBits>::get(codes, i) ^ top) - top);
  }
}

template <int kBits>
void pack_integer(const void* from, void* to, std::int64_t n) {
  const auto* values = static_cast<const std::uint8_t*>(from);
  Packed<kBits>::fill(static_cast<std::uint8_t*>(to), n, [=](std::int64_t i) -> unsigned { return values[i]; });
}

template <class Format>
ConvertLoop pack_float_loop(bool saturate) {
  return saturate ? pack_float<Format, true> : pack_float<Format, false>;
}

template <bool kSaturate>
ConvertLoop pack_e8m0_loop(Float8E8M0::Round round) {
  switch (round) {
    case Float8E8M0::Round::up:
      return pack_e8m0<kSaturate, Float8E8M0::Round::up>;
    case Float8E8M0::Round::down:
      return pack_e8m0<kSaturate, Float8E8M0::Round::down>;
    case Float8E8M0::Round::nearest:
      return pack_e8m0<kSaturate, Float8E8M0::Round::nearest>;
  }
  return nullptr;
}

}  // namespace

bool is_small(DType dtype) {
  switch (dtype) {
    case DType::float8e4m3fn:
    case DType::float8e4m3fnuz:
    case DType::float8e5m2:
    case DType::float8e5m2fnuz:
    case DType::float8e8m0:
      return true;
    default:
      return is_sub_byte(dtype);
  }
}

DType plain_type(DType small) {
  switch (small) {
    case DType::int4:
    case DType::int2:
      return DType::int8;
    case DType::uint4:
    case DType::uint2:
      return DType::uint8;
    default:
      return DType::float32;
  }
}

ConvertLoop unpack_loop(DType small) {
  switch (small) {
    case DType::float8e4m3fn:
      return unpack_float<Float8E4M3FN, 8>;
    case DType::float8e4m3fnuz:
      return unpack_float<Float8E4M3FNUZ, 8>;
    case DType::float8e5m2:
      return unpack_float<Float8E5M2, 8>;
    case DType::float8e5m2fnuz:
      return unpack_float<Float8E5M2FNUZ, 8>;
    case DType::float8e8m0:
      return unpack_float<Float8E8M0, 8>;
    case DType::float6e2m3:
      return unpack_float<Float6E2M3, 6>;
    case DType::float6e3m2:
      return unpack_float<Float6E3M2, 6>;
    case DType::float4e2m1:
      return unpack_float<Float4E2M1, 4>;
    case DType::uint4:
      return unpack_integer<4, false>;
    case DType::int4:
      return unpack_integer<4, true>;
    case DType::uint2:
      return unpack_integer<2, false>;
    case DType::int2:
      return unpack_integer<2, true>;
    default:
      fail<InternalBug>("unpack_loop: ", name_of(small));
  }
}

ConvertLoop pack_loop(DType small, ConvertOptions options) {
  switch (small) {
    case DType::float8e4m3fn:
      return pack_float_loop<Float8E4M3FN>(options.saturate);
    case DType::float8e4m3fnuz:
      return pack_float_loop<Float8E4M3FNUZ>(options.saturate);
    case DType::float8e5m2:
      return pack_float_loop<Float8E5M2>(options.saturate);
    case DType::float8e5m2fnuz:
      return pack_float_loop<Float8E5M2FNUZ>(options.saturate);
    case DType::float8e8m0:
      return options.saturate ? pack_e8m0_loop<true>(options.round) : pack_e8m0_loop<false>(options.round);
    case DType::float6e2m3:
      return pack_float<Float6E2M3, true>;
    case DType::float6e3m2:
      return pack_float<Float6E3M2, true>;
    case DType::float4e2m1:
      return pack_float<Float4E2M1, true>;
    case DType::uint4:
    case DType::int4:
      return pack_integer<4>;
    case DType::uint2:
    case DType::int2:
      return pack_integer<2>;
    default:
      fail<InternalBug>("pack_loop: ", name_of(small));
  }
}

}  // namespace backpass
