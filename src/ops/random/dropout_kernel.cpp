#include "ops/random/dropout_kernel.hpp"

#include <algorithm>
#include <cstddef>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/random/dropout_kernel.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<std::uint32_t>;
using V32 = hn::Vec<D32>;

#if HWY_TARGET != HWY_SCALAR

using D64 = hn::ScalableTag<std::uint64_t>;
using V64 = hn::Vec<D64>;

/// The state of as many blocks as there are 64-bit lanes. Only the lower half of a lane counts.
struct Blocks {
  V64 x0, x1, x2, x3;
};

HWY_INLINE Blocks start(const Philox& random, V64 index) {
  const D64 d;
  return {index, hn::ShiftRight<32>(index), hn::Set(d, random.offset()), hn::Set(d, random.offset() >> 32)};
}

HWY_INLINE void advance(Blocks& s, V64 key0, V64 key1) {
  const D32 d32;
  const V64 a = hn::MulEven(hn::Set(d32, Philox::kFactor0), hn::BitCast(d32, s.x0));
  const V64 b = hn::MulEven(hn::Set(d32, Philox::kFactor1), hn::BitCast(d32, s.x2));
  s = {hn::Xor3(hn::ShiftRight<32>(b), s.x1, key0), b, hn::Xor3(hn::ShiftRight<32>(a), s.x3, key1), a};
}

/// Gives f the elements of the blocks in order: first those of the blocks of even lanes, then those of odd lanes.
template <class F>
HWY_INLINE void deliver(const Blocks& s, std::size_t at, const F& f) {
  const D32 d32;
  const D64 d;
  auto pair = [&](V64 even, V64 odd) HWY_ATTR {
    return hn::BitCast(d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even)));
  };
  const V64 low = pair(s.x0, s.x1);
  const V64 high = pair(s.x2, s.x3);
  f(at, hn::BitCast(d32, hn::InterleaveLower(d, low, high)));
  f(at + hn::Lanes(d32), hn::BitCast(d32, hn::InterleaveUpper(d, low, high)));
}

// So many states at a time hide the latency of the products.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr std::size_t kStates = 4;
#else
constexpr std::size_t kStates = 2;
#endif

/// f(i, bits of the elements from `first` + i on) for whole steps; returns how many elements that was.
template <class F>
HWY_INLINE std::size_t each_vector(const Philox& random, std::uint64_t first, std::size_t n, const F& f) {
  const D64 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t step = 4 * kStates * lanes;
  const V64 half = hn::ShiftRight<1>(hn::Iota(d, 0));
  const V64 places = hn::OddEven(hn::Add(half, hn::Set(d, lanes / 2)), half);  // first half even lanes, then odd ones
  const Philox::Keys keys = random.keys();
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    Blocks states[kStates];  // NOLINT: std::array would be spilled
#pragma GCC unroll 4
    for (std::size_t s = 0; s < kStates; ++s) {
      states[s] = start(random, hn::Add(hn::Set(d, (first + i) / 4 + s * lanes), places));
    }
#pragma GCC unroll 10
    for (std::size_t round = 0; round < Philox::kRounds; ++round) {
      const V64 key0 = hn::Set(d, keys[2 * round]);
      const V64 key1 = hn::Set(d, keys[2 * round + 1]);
#pragma GCC unroll 4
      for (std::size_t s = 0; s < kStates; ++s) advance(states[s], key0, key1);
    }
#pragma GCC unroll 4
    for (std::size_t s = 0; s < kStates; ++s) deliver(states[s], i + s * step / kStates, f);
  }
  return i;
}

#else

template <class F>
std::size_t each_vector(const Philox&, std::uint64_t, std::size_t, const F&) {
  return 0;
}

#endif

/// g(i, bits of element `first` + i) one by one, from i = begin (a multiple of four) on.
template <class G>
void each_element(const Philox& random, std::uint64_t first, std::size_t begin, std::size_t n, const G& g) {
  Philox::Block block{};
  for (std::size_t i = begin; i < n; ++i) {
    if (i % 4 == 0) block = random.block((first + i) / 4);
    g(i, block[i % 4]);
  }
}

void bits_of(const Philox& random, std::uint64_t first, std::size_t n, std::uint32_t* HWY_RESTRICT bits) {
  const D32 d;
  const std::size_t done =
      each_vector(random, first, n, [=](std::size_t i, V32 v) HWY_ATTR { hn::StoreU(v, d, bits + i); });
  each_element(random, first, done, n, [=](std::size_t i, std::uint32_t v) { bits[i] = v; });
}

/// Unsigned numbers less than a limit: with the top bit flipped, unsigned order is signed order.
class Below {
 public:
  explicit Below(std::uint32_t limit) : limit_(hn::BitCast(kSigned, hn::Set(D32(), limit ^ kTop))) {}
  HWY_INLINE hn::Mask<D32> operator()(V32 bits) const {
    return hn::RebindMask(D32(), hn::Lt(hn::BitCast(kSigned, hn::Xor(bits, hn::Set(D32(), kTop))), limit_));
  }

 private:
  static constexpr hn::RebindToSigned<D32> kSigned{};
  static constexpr std::uint32_t kTop = std::uint32_t{1} << 31;
  hn::Vec<hn::RebindToSigned<D32>> limit_;
};

#if HWY_TARGET != HWY_SCALAR

void kept_of(const Philox& random, std::uint64_t first, std::size_t n, std::uint32_t threshold,
             std::uint8_t* HWY_RESTRICT kept) {
  const hn::Rebind<std::uint8_t, D32> bytes;
  const Below dropped(threshold);
  auto flags = [=](V32 bits)
                   HWY_ATTR { return hn::TruncateTo(bytes, hn::IfThenZeroElse(dropped(bits), hn::Set(D32(), 1))); };
  const std::size_t done = each_vector(
      random, first, n, [=](std::size_t i, V32 bits) HWY_ATTR { hn::StoreU(flags(bits), bytes, kept + i); });
  if (done == n) return;
  std::uint8_t rest[4 * kStates * hn::MaxLanes(D64())];  // one whole step is cheaper than a few elements one by one
  std::uint8_t* to = rest;
  each_vector(random, first + done, 4 * kStates * hn::Lanes(D64()),
              [=](std::size_t i, V32 bits) HWY_ATTR { hn::StoreU(flags(bits), bytes, to + i); });
  std::copy_n(rest, n - done, kept + done);
}

#else

void kept_of(const Philox& random, std::uint64_t first, std::size_t n, std::uint32_t threshold, std::uint8_t* kept) {
  each_element(random, first, 0, n, [=](std::size_t i, std::uint32_t bits) { kept[i] = bits >= threshold ? 1 : 0; });
}

#endif

void keep_f32(const Philox& random, std::uint64_t first, std::size_t n, std::uint32_t threshold, float scale,
              const float* x, float* y) {
  const hn::ScalableTag<float> d;
  const Below below(threshold);
  const auto factor = hn::Set(d, scale);
  const std::size_t done = each_vector(random, first, n, [=](std::size_t i, V32 bits) HWY_ATTR {
    const auto dropped = hn::RebindMask(d, below(bits));
    hn::StoreU(hn::IfThenZeroElse(dropped, hn::Mul(hn::LoadU(d, x + i), factor)), d, y + i);
  });
  each_element(random, first, done, n,
               [=](std::size_t i, std::uint32_t bits) { y[i] = bits >= threshold ? x[i] * scale : 0; });
}

/// As many lanes as `d` has, set where the bytes are not 0.
template <class D>
HWY_INLINE hn::Mask<D> kept_lanes(D d, const bool* kept) {
  const hn::Rebind<std::uint8_t, D> bytes;
  const hn::Rebind<std::uint32_t, D> words;
  const hn::RebindToUnsigned<D> wide;
  const auto flags = hn::PromoteTo(words, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(kept)));
  if constexpr (sizeof(hn::TFromD<D>) == sizeof(std::uint32_t)) {
    return hn::RebindMask(d, hn::Ne(flags, hn::Zero(wide)));
  } else {
    return hn::RebindMask(d, hn::Ne(hn::PromoteTo(wide, flags), hn::Zero(wide)));
  }
}

template <class T>
HWY_INLINE void keep_where_as(const bool* kept, std::size_t n, T scale, const T* x, T* y) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::IfThenElseZero(kept_lanes(d, kept + i), hn::Mul(hn::LoadU(d, x + i), factor)), d, y + i);
  }
  for (; i < n; ++i) y[i] = kept[i] ? x[i] * scale : T{0};
}

void keep_where_f32(const bool* kept, std::size_t n, float scale, const float* x, float* y) {
  keep_where_as(kept, n, scale, x, y);
}

void keep_where_f64(const bool* kept, std::size_t n, double scale, const double* x, double* y) {
  keep_where_as(kept, n, scale, x, y);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(bits_of);
HWY_EXPORT(kept_of);
HWY_EXPORT(keep_f32);
HWY_EXPORT(keep_where_f32);
HWY_EXPORT(keep_where_f64);

void philox_bits(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t* bits) {
  HWY_DYNAMIC_DISPATCH(bits_of)(random, static_cast<std::uint64_t>(first), static_cast<std::size_t>(n), bits);
}

void keep_scaled(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t threshold, float scale,
                 const float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(keep_f32)
  (random, static_cast<std::uint64_t>(first), static_cast<std::size_t>(n), threshold, scale, x, y);
}

const bool* draw_kept(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t threshold, bool* room) {
  const std::int64_t lead = first % 4;
  HWY_DYNAMIC_DISPATCH(kept_of)
  (random, static_cast<std::uint64_t>(first - lead), static_cast<std::size_t>(n + lead), threshold,
   reinterpret_cast<std::uint8_t*>(room));
  return room + lead;
}

void keep_where(const bool* kept, std::int64_t n, float scale, const float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(keep_where_f32)(kept, static_cast<std::size_t>(n), scale, x, y);
}

void keep_where(const bool* kept, std::int64_t n, double scale, const double* x, double* y) {
  HWY_DYNAMIC_DISPATCH(keep_where_f64)(kept, static_cast<std::size_t>(n), scale, x, y);
}

}  // namespace backpass
#endif  // HWY_ONCE
