// Softmax and log-softmax over rows or columns of a row-major matrix. y may be x.
#pragma once

#include <cstdint>

namespace backpass {

/// Each of `rows` rows of n elements.
void softmax_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, bool log);
void softmax_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, bool log);

/// Columns [begin, begin + width) of an n x stride matrix.
void softmax_columns(const float* x, float* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log);
void softmax_columns(const double* x, double* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log);

/// Columns handled by one call of softmax_columns at best.
inline constexpr std::int64_t kSoftmaxTile = 64;

/// Log-softmax of rows, and log(sum(exp(x))) of each.
void log_softmax_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, double* log_sums);
void log_softmax_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, double* log_sums);

/// log(sum(exp(x))) of one row; stable.
double log_sum_exp_row(const float* x, std::int64_t n);
double log_sum_exp_row(const double* x, std::int64_t n);

/// y = exp(x) * factor, with one factor for all (`uniform`) or one for each of the n elements.
void exp_times(const float* x, float* y, std::int64_t n, const float* factor, bool uniform);
void exp_times(const double* x, double* y, std::int64_t n, const double* factor, bool uniform);

/// Over axis `n` of a tensor seen as [outer, n, inner], in parallel.
template <class T>
void softmax(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner, bool log);
extern template void softmax(const float*, float*, std::int64_t, std::int64_t, std::int64_t, bool);
extern template void softmax(const double*, double*, std::int64_t, std::int64_t, std::int64_t, bool);

}  // namespace backpass
