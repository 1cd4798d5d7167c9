#include "support/random_seed.hpp"

namespace backpass {
namespace {

constexpr std::uint64_t kDefaultSeed = 20240229;

struct SeedSequence {
  std::atomic<std::uint64_t> seed{kDefaultSeed};
  std::atomic<std::uint64_t> drawn{0};
};

SeedSequence& sequence() {
  static SeedSequence s;
  return s;
}

}  // namespace

void set_random_seed(std::uint64_t seed) {
  sequence().seed = seed;
  sequence().drawn = 0;
}

std::uint64_t fresh_random_seed() {
  Philox::Block b = Philox(sequence().seed, ~std::uint64_t{0}).block(sequence().drawn.fetch_add(1));
  return (std::uint64_t{b[0]} << 32) | b[1];
}

}  // namespace backpass
