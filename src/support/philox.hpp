// Random numbers as a function: the bits of element i of run `offset` under `seed` are computed, never stored, so they
// are the same for any number of threads and can be computed again. Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace backpass {

class Philox {
 public:
  using Block = std::array<std::uint32_t, 4>;
  static constexpr std::size_t kRounds = 10;
  static constexpr std::uint32_t kFactor0 = 0xD2511F53U;
  static constexpr std::uint32_t kFactor1 = 0xCD9E8D57U;
  using Keys = std::array<std::uint32_t, 2 * kRounds>;

  Philox(std::uint64_t seed, std::uint64_t offset) : seed_(seed), offset_(offset) {}

  /// 128 random bits; `index` counts blocks.
  Block block(std::uint64_t index) const {
    Block x{low(index), high(index), low(offset_), high(offset_)};
    std::uint32_t key0 = low(seed_);
    std::uint32_t key1 = high(seed_);
    for (std::size_t round = 0; round < kRounds; ++round) {
      std::uint64_t a = std::uint64_t{kFactor0} * x[0];
      std::uint64_t b = std::uint64_t{kFactor1} * x[2];
      x = {high(b) ^ x[1] ^ key0, low(b), high(a) ^ x[3] ^ key1, low(a)};
      key0 += kStep0;
      key1 += kStep1;
    }
    return x;
  }

  std::uint64_t offset() const { return offset_; }

  /// The two keys of each round: what kernels need to compute many blocks at a time.
  Keys keys() const {
    Keys all{low(seed_), high(seed_)};
    for (std::size_t i = 2; i < all.size(); i += 2) {
      all[i] = all[i - 2] + kStep0;
      all[i + 1] = all[i - 1] + kStep1;
    }
    return all;
  }

  /// 32 bits for element i; four neighbours share a block.
  std::uint32_t bits(std::uint64_t i) const { return block(i / 4)[i % 4]; }

  /// In [0, 1), with 53 random bits. Two neighbours share a block.
  double uniform(std::uint64_t i) const {
    Block b = block(i / 2);
    std::uint64_t wide = (std::uint64_t{b[2 * (i % 2)]} << 32) | b[2 * (i % 2) + 1];
    return static_cast<double>(wide >> 11) * 0x1p-53;
  }

  /// Mean 0, deviation 1 (Box-Muller).
  double normal(std::uint64_t i) const {
    Block b = block(i / 2);
    double radius = (static_cast<double>(b[2 * (i % 2)]) + 1) * 0x1p-32;  // in (0, 1], so the logarithm is finite
    double angle = static_cast<double>(b[2 * (i % 2) + 1]) * 0x1p-32;
    return std::sqrt(-2 * std::log(radius)) * std::cos(2 * std::numbers::pi * angle);
  }

 private:
  static constexpr std::uint32_t kStep0 = 0x9E3779B9U;
  static constexpr std::uint32_t kStep1 = 0xBB67AE85U;

  static std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
  static std::uint32_t high(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }

  std::uint64_t seed_;
  std::uint64_t offset_;
};

}  // namespace backpass
