// The two passes of LAMB, whose second needs what the first has found about the whole weight.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/optimizers/optimizer.hpp"

namespace backpass {

/// Sums of squares, in double.
struct LambSums {
  double weight = 0;
  double direction = 0;

  void add(const LambSums& other) {
    weight += other.weight;
    direction += other.direction;
  }
};

/// Updates the moments of n elements on this thread. Elements whose direction is not finite keep theirs, and go to
/// `refused`: their weight stays, too.
template <class T>
LambSums lamb_moments(const StepFactors& factors, const StepPiece<T>& piece, std::int64_t n,
                      std::vector<std::int64_t>& refused);

/// w - ratio * direction; an element that would not be finite stays. The piece's m and v are the updated moments.
template <class T>
void lamb_apply(const StepFactors& factors, double ratio, const StepPiece<T>& piece, std::int64_t n,
                const std::vector<std::int64_t>& refused);

/// The rate a weight goes in its direction by.
double lamb_ratio(const WeightSettings& settings, double rate, const LambSums& sums);

/// Sum of the squares of n elements, in double.
template <class T>
double squares_of(const T* x, std::int64_t n);

}  // namespace backpass
