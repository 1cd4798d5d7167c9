// What tests of SIMD loops share.
#pragma once

#include <cstdint>
#include <memory>

#include "hwy/targets.h"
#include "support/philox.hpp"

namespace backpass {

/// Calls f once per instruction set this machine has.
template <class F>
void on_every_target(const F& f) {
  for (std::int64_t target = hwy::SupportedTargets(); target != 0; target &= target - 1) {
    hwy::SetSupportedTargetsForTest(target & -target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// Exactly n elements on the heap, so that a sanitizer sees any access beyond them.
template <class T>
std::unique_ptr<T[]> numbers(std::int64_t n, std::uint64_t seed) {
  std::unique_ptr<T[]> x(new T[static_cast<std::size_t>(n)]);
  for (std::int64_t i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = static_cast<T>(Philox(seed, 0).normal(static_cast<std::uint64_t>(i)));
  return x;
}

}  // namespace backpass
