// Softmax of some rows over many classes, stored class by class: [classes, width], where a column is a row's. Vectors
// then hold neighbouring rows, and a product with the weights of the classes needs none of them in another order. Cut
// into tiles of classes that are worked on independently.
#pragma once

#include <cstdint>

namespace backpass {

/// Columns are worked on in groups of so many: `width` is a multiple of it.
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

/// The tile becomes exp(score + bias of the class - shift of the column). Gives each column's shift, which is its
/// largest score, and sum. `bias` may be null.
void exponentials(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums);
void exponentials(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums);

/// Each column times its factor. Gives the sum of each class, unless `sums` is null.
void scale_columns(const ClassTile<float>& tile, const float* factors, float* sums);
void scale_columns(const ClassTile<double>& tile, const double* factors, double* sums);

}  // namespace backpass
