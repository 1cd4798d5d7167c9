// Softmax of some rows over many classes, stored class by class: [classes, width], where a column is a row's. Vectors
// then hold neighbouring rows, and a product with the weights of the classes needs none of them in another order. Cut
// into tiles of classes that are worked on independently.
#pragma once

#include <cstdint>

namespace backpass {

/// Columns are worked on in groups of so many; a rest of fewer takes longer.
inline constexpr std::int64_t kTileColumns = 16;
/// Classes of a tile at best.
inline constexpr std::int64_t kTileClasses = 320;

/// A tile of scores, `ld` elements from class to class.
template <class T>
struct ClassTile {
  T* data;
  std::int64_t classes;
  std::int64_t width;
  std::int64_t ld;
};

/// Sums of each column: of its scores, with the bias of the class, times the weight of the class. `bias` may be null,
/// and so may `weights`: all are 1 then.
void score_sums(const ClassTile<float>& tile, const float* bias, const float* weights, float* sums);
void score_sums(const ClassTile<double>& tile, const double* bias, const double* weights, double* sums);

/// The tile becomes exp(score + bias of the class - shift of the column). Gives each column's shift, which is its
/// largest score, and sum. `bias` may be null.
void exponentials(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums);
void exponentials(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums);

/// The same with shifts that are given. Where a score is more than 80 above its shift, e^80 stands for it.
void shifted_exponentials(const ClassTile<float>& tile, const float* bias, const float* shifts, float* sums);
void shifted_exponentials(const ClassTile<double>& tile, const double* bias, const double* shifts, double* sums);

/// The sum of each class, columns times their factors.
void weighted_sums(const ClassTile<float>& tile, const float* factors, float* sums);
void weighted_sums(const ClassTile<double>& tile, const double* factors, double* sums);

/// Each column times its factor. Gives the sum of each class, unless `sums` is null.
void scale_columns(const ClassTile<float>& tile, const float* factors, float* sums);
void scale_columns(const ClassTile<double>& tile, const double* factors, double* sums);

/// Minus the share of the column times the weight of the class; `weights` may be null.
void subtract_shares(const ClassTile<float>& tile, const float* shares, const float* weights);
void subtract_shares(const ClassTile<double>& tile, const double* shares, const double* weights);

}  // namespace backpass
