// Position of the largest or smallest element along an axis. NaN counts as more extreme than any number, as in numpy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/fold.hpp"
#include "support/parallel.hpp"

namespace backpass {

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

/// True when `candidate` displaces `best`, which stands at a smaller position.
template <class T>
bool displaces(T candidate, T best, bool largest, bool last) {
  if (is_nan(best)) return last && is_nan(candidate);
  if (is_nan(candidate)) return true;
  if (last && candidate == best) return true;
  return largest ? candidate > best : candidate < best;
}

template <class T>
std::int64_t arg_extreme_run(const T* x, std::int64_t n, bool largest, bool last) {
  if constexpr (std::is_floating_point_v<T>) {
    auto extreme = static_cast<T>(fold_run(largest ? Fold::maximum : Fold::minimum, x, n, T{0}));
    auto matches = [&](T v) { return is_nan(extreme) ? is_nan(v) : v == extreme; };
    if (!last) return std::find_if(x, x + n, matches) - x;
    std::int64_t i = n - 1;
    while (i > 0 && !matches(x[i])) --i;
    return i;
  } else {
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < n; ++i) {
      if (displaces(x[i], x[best], largest, last)) best = i;
    }
    return best;
  }
}

/// x is [outer, n, inner] with n > 0, y is [outer, inner].
template <class T>
void arg_extreme(const T* x, std::int64_t* y, std::int64_t outer, std::int64_t n, std::int64_t inner, bool largest,
                 bool last) {
  if (inner == 1) {
    return parallel_for(outer, grain_for(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) y[o] = arg_extreme_run(x + o * n, n, largest, last);
    });
  }
  parallel_for(outer, grain_for(n * inner), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      const T* block = x + o * n * inner;
      std::int64_t* best = y + o * inner;
      std::fill_n(best, inner, 0);
      for (std::int64_t i = 1; i < n; ++i) {
        for (std::int64_t c = 0; c < inner; ++c) {
          if (displaces(block[i * inner + c], block[best[c] * inner + c], largest, last)) best[c] = i;
        }
      }
    }
  });
}

}  // namespace backpass
