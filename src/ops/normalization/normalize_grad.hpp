// Inner loops of the gradients of normalisations. Sums run in the element type over short blocks and in double over
// blocks.
#pragma once

#include <cstdint>

namespace backpass {

/// How the normalised row z follows from what the gradient is given.
enum class RowNormForm : std::uint8_t {
  centered,    ///< z = (x - mean) * inverse
  simplified,  ///< z = x * inverse; nothing was subtracted, so no mean of the gradient is either
  invertible,  ///< z = (y - bias) / scale
};

/// Rows of n elements with their statistics, one per row.
template <class T>
struct RowNormGrad {
  RowNormForm form = RowNormForm::centered;
  std::int64_t n = 0;
  const T* scale = nullptr;  ///< n values
  const T* bias = nullptr;   ///< n values (invertible)
};

/// dx = inverse * (g - mean(g) - z * mean(g * z)) with g = dy * scale; dscale = sum(dy * z) and dbias = sum(dy) over
/// these rows, few enough (kRowNormGradRows) to be added up in the element type. `x` is y for the invertible form. dx
/// may be dy or x.
void row_norm_grad(const RowNormGrad<float>& p, std::int64_t rows, const float* dy, const float* x, const float* mean,
                   const float* inverse, float* dx, float* dscale, float* dbias);
void row_norm_grad(const RowNormGrad<double>& p, std::int64_t rows, const double* dy, const double* x,
                   const double* mean, const double* inverse, double* dx, double* dscale, double* dbias);

inline constexpr std::int64_t kRowNormGradRows = 128;

struct GradientSums {
  double plain = 0;   ///< sum(dy)
  double with_x = 0;  ///< sum(dy * (x - center))
};
GradientSums gradient_sums(const float* dy, const float* x, std::int64_t n, float center);
GradientSums gradient_sums(const double* dy, const double* x, std::int64_t n, double center);

/// dx = factor * dy - (x - center) * slope - offset for n elements. dx may be dy or x.
void gradient_run(const float* dy, const float* x, float* dx, std::int64_t n, float center, float factor, float slope,
                  float offset);
void gradient_run(const double* dy, const double* x, double* dx, std::int64_t n, double center, double factor,
                  double slope, double offset);

}  // namespace backpass
