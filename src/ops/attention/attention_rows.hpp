// Steps of attention over rows of scores, and of heads.
#pragma once

#include <cstdint>

namespace backpass {

/// scores[j] += added[j]; where that is -inf, the result is -inf whatever the score was.
void add_mask(float* scores, const float* added, std::int64_t count);
void add_mask(double* scores, const double* added, std::int64_t count);

/// scores[j] = -inf where chosen[j] is false.
void choose_scores(float* scores, const bool* chosen, std::int64_t count);
void choose_scores(double* scores, const bool* chosen, std::int64_t count);

/// scores[j] += lowest where chosen[j] is false.
void lower_scores(float* scores, const bool* chosen, float lowest, std::int64_t count);
void lower_scores(double* scores, const bool* chosen, double lowest, std::int64_t count);

/// Whether one is true.
bool any_chosen(const bool* chosen, std::int64_t count);

/// Whether a number is above the limit, or none (NaN).
bool any_above(const float* numbers, std::int64_t count, float limit);
bool any_above(const double* numbers, std::int64_t count, double limit);

/// Whether all elements of some rows are finite; `stride` is the distance of rows.
bool all_finite(const float* first, std::int64_t rows, std::int64_t length, std::int64_t stride);
bool all_finite(const double* first, std::int64_t rows, std::int64_t length, std::int64_t stride);

/// The gradient of scores from that of their softmax, in place: slope = p * (slope - sum(p * slope)) with
/// p = weights * factor.
void score_gradient(const float* weights, float factor, float* slope, std::int64_t count);
void score_gradient(const double* weights, double factor, double* slope, std::int64_t count);

/// Rows at another distance, each filled up with zeros to `filled` elements, no fewer than `length`.
void copy_rows(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t length, float* to,
               std::int64_t to_stride, std::int64_t filled);
void copy_rows(const double* from, std::int64_t from_stride, std::int64_t rows, std::int64_t length, double* to,
               std::int64_t to_stride, std::int64_t filled);

}  // namespace backpass
