// Convolutions over 3 x 3 windows by Winograd's minimal filtering: squares of results from products in a
// transformed space, a quarter (4 x 4 results at once) or four ninths (2 x 2) of the multiplications of a direct sum.
// Between tensors in plain layout, float32 or bfloat16 (summed in float32); the same bits for any number of threads.
// docs/winograd.md tells when it pays, and what becomes of errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/conv.hpp"
#include "ops/convolution/winograd_simd.hpp"

namespace backpass {

/// 3 x 3 windows one apart, one group, at most two elements of padding.
bool has_winograd_windows(const ConvGeometry& g);

/// How many results a tile gives along an axis, 2 or 4; none where direct sums are as fast, or windows differ.
std::optional<std::int64_t> winograd_results(const ConvGeometry& g);

/// Y from X and W, or dX from dY and W.
class WinogradConv {
 public:
  enum class Kind : std::uint8_t { forward, backward_data };
  /// `is_narrow`: images are bfloat16, x and y alike.
  WinogradConv(const ConvGeometry& g, Kind kind, std::int64_t results, bool is_narrow = false);

  /// 64-byte aligned memory that run() needs.
  std::size_t scratch_bytes() const;
  /// `bias` may be null.
  void run(const void* x, const float* w, const float* bias, void* y, std::byte* scratch) const;

 private:
  void run_block(std::int64_t block, const void* x, const float* bias, const float* panels, float* memory,
                 void* y) const;

  winograd::Images in_, out_;
  winograd::Weights weights_;
  std::int64_t rows_ = 0;        ///< of tiles, of all images
  std::int64_t block_rows_ = 0;  ///< of tiles that are worked on together
  std::int64_t blocks_ = 0, slots_ = 0;
  std::int64_t panels_ = 0, panel_plane_ = 0;
  std::int64_t in_row_ = 0, out_row_ = 0, in_plane_ = 0, out_plane_ = 0;
};

/// dW from X and dY.
class WinogradWeights {
 public:
  WinogradWeights(const ConvGeometry& g, std::int64_t results, bool is_narrow = false);

  std::size_t scratch_bytes() const;
  void run(const void* x, const void* dy, float* dw, std::byte* scratch) const;

 private:
  void transform_block(std::int64_t first, std::int64_t last, const void* x, const void* dy,
                       const winograd::Tiles& to_x, const winograd::Tiles& to_dy) const;
  /// Products of one position.
  void add_products(std::int64_t tiles, const float* x, const float* dy, float* sums, bool add) const;

  winograd::Images in_, out_;
  winograd::Weights weights_;
  std::int64_t rows_ = 0, block_rows_ = 0;
  std::int64_t in_row_ = 0, out_row_ = 0, in_plane_ = 0, out_plane_ = 0, sum_plane_ = 0;
};

}  // namespace backpass
