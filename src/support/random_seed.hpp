// Seeds for random operators that bring none of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "support/philox.hpp"

namespace backpass {

/// Restarts the sequence that fresh_random_seed draws from. Without a call it starts at a fixed seed.
void set_random_seed(std::uint64_t seed);

/// A new seed; the n-th call after set_random_seed(s) always gives the same one.
std::uint64_t fresh_random_seed();

/// The random numbers of one operator: each run gets the next offset.
class RandomStream {
 public:
  explicit RandomStream(std::optional<std::uint64_t> seed)
      : seed_(seed ? *seed : fresh_random_seed()), runs_(std::make_shared<std::atomic<std::uint64_t>>(0)) {}
  Philox next() const { return {seed_, runs_->fetch_add(1)}; }

 private:
  std::uint64_t seed_;
  std::shared_ptr<std::atomic<std::uint64_t>> runs_;  // shared: closures are copied
};

}  // namespace backpass
