// Inner loops of reductions: many floats become one, or many rows become one row.
#pragma once

#include <cstdint>
#include <limits>

namespace backpass {

enum class Fold : std::uint8_t { sum, sum_abs, sum_square, sum_exp, maximum, minimum, product };

/// The value that folding nothing gives.
inline double fold_identity(Fold fold) {
  switch (fold) {
    case Fold::maximum:
      return -std::numeric_limits<double>::infinity();
    case Fold::minimum:
      return std::numeric_limits<double>::infinity();
    case Fold::product:
      return 1;
    default:
      return 0;
  }
}

/// Joins two partial results. NaN wins over every number, as in numpy.
inline double fold_join(Fold fold, double a, double b) {
  switch (fold) {
    case Fold::maximum:
      return a != a || a > b ? a : b;
    case Fold::minimum:
      return a != a || a < b ? a : b;
    case Fold::product:
      return a * b;
    default:
      return a + b;
  }
}

/// Folds each of `rows` rows of n elements. Sums run in the element type over short blocks and in double over blocks.
/// sum_exp adds exp(x - shift), sum_square adds (x - shift)^2; `shift` (may be null: 0) has one value per row.
void fold_rows(Fold fold, const float* x, std::int64_t rows, std::int64_t n, const float* shift, double* result);
void fold_rows(Fold fold, const double* x, std::int64_t rows, std::int64_t n, const double* shift, double* result);

template <class T>
double fold_run(Fold fold, const T* x, std::int64_t n, T shift) {
  double result = 0;
  fold_rows(fold, x, 1, n, &shift, &result);
  return result;
}

/// Joins `rows` rows of `width` columns, `stride` elements apart, into acc[0, width); `shift` (may be null) is per
/// column.
void fold_columns(Fold fold, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const float* shift, double* acc);
void fold_columns(Fold fold, const double* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const double* shift, double* acc);

}  // namespace backpass
