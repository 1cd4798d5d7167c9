// Inner loops of the normalisation operators. y may be x everywhere.
#pragma once

#include <cstdint>

namespace backpass {

template <class T>
struct RowNorm {
  std::int64_t n = 0;  ///< elements per row
  double epsilon = 0;
  bool centered = true;           ///< subtract the mean (LayerNormalization) or not (RMSNormalization)
  const T* scale = nullptr;       ///< n values, or null for 1
  const T* bias = nullptr;        ///< n values, or null for 0
  std::int64_t scale_stride = 0;  ///< from one row's scale to the next row's; 0: shared by all rows
  std::int64_t bias_stride = 0;
};

/// y = (x - mean) / sqrt(variance + epsilon) * scale + bias for each row. `mean` and `inverse` (one per row: what was
/// subtracted and multiplied with) may be null.
void normalize_rows(const RowNorm<float>& norm, const float* x, float* y, std::int64_t rows, float* mean,
                    float* inverse);
void normalize_rows(const RowNorm<double>& norm, const double* x, double* y, std::int64_t rows, double* mean,
                    double* inverse);

/// y = (x - shift) * factor + offset for n elements.
void affine_run(const float* x, float* y, std::int64_t n, float shift, float factor, float offset);
void affine_run(const double* x, double* y, std::int64_t n, double shift, double factor, double offset);

/// y[r][i] = x[r][i] * factor[i] + offset[i]
void affine_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, const float* factor, const float* offset);
void affine_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, const double* factor,
                 const double* offset);

/// Mean and population variance of n > 0 elements. The mean is center + rest, where `center` is a number of the element
/// type: subtracting it first and the rest after keeps elements far from zero exact.
struct Moments {
  double center, rest, variance;
  double mean() const { return center + rest; }
};
Moments moments(const float* x, std::int64_t n);
Moments moments(const double* x, std::int64_t n);

}  // namespace backpass
