#include "ops/movement/sub_byte.hpp"

#include <algorithm>

#include "support/parallel.hpp"

namespace backpass::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // a multiple of 8: chunks begin on whole bytes for every width

}  // namespace

void unpack_elements(DType dtype, const void* packed, std::uint8_t* bytes, std::int64_t count) {
  const int width = bit_width(dtype);
  const unsigned mask = (1U << width) - 1U;
  const auto* in = static_cast<const std::uint8_t*>(packed);
  const auto total = static_cast<std::int64_t>(byte_size(dtype, count));
  parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t bit = i * width;
      unsigned pair = in[bit / 8];
      if (bit / 8 + 1 < total) pair |= static_cast<unsigned>(in[bit / 8 + 1]) << 8;
      bytes[i] = static_cast<std::uint8_t>((pair >> (bit % 8)) & mask);
    }
  });
}

void pack_elements(DType dtype, const std::uint8_t* bytes, void* packed, std::int64_t count) {
  const int width = bit_width(dtype);
  const unsigned mask = (1U << width) - 1U;
  auto* out = static_cast<std::uint8_t*>(packed);
  parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    unsigned pending = 0;
    int bits = 0;
    std::uint8_t* next = out + begin * width / 8;
    for (std::int64_t i = begin; i < end; ++i) {
      pending |= (bytes[i] & mask) << bits;
      bits += width;
      if (bits >= 8) {
        *next++ = static_cast<std::uint8_t>(pending);
        pending >>= 8;
        bits -= 8;
      }
    }
    if (bits > 0) *next = static_cast<std::uint8_t>(pending);
  });
}

}  // namespace backpass::kernels
