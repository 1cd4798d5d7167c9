// Convolution by matrix product: works for any number of axes and every element type gemm knows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backpass/tensor.hpp"

namespace backpass {

inline constexpr std::size_t kMaxSpatialAxes = 16;

/// Sizes of a convolution Y = X * W. Spatial vectors have one entry per spatial axis.
struct ConvGeometry {
  std::int64_t batch = 1;
  std::int64_t groups = 1;
  std::int64_t in_channels = 1;   ///< per group
  std::int64_t out_channels = 1;  ///< per group
  Dims in;
  Dims out;
  Dims kernel;
  Dims stride;
  Dims dilation;
  Dims pad_begin;
  Dims pad_end;

  std::int64_t in_size() const { return element_count(in); }    ///< elements of one input channel
  std::int64_t out_size() const { return element_count(out); }  ///< elements of one output channel
  std::int64_t kernel_size() const { return element_count(kernel); }
  std::int64_t column_rows() const { return in_channels * kernel_size(); }
  bool is_pointwise() const;  ///< kernel 1, stride 1, no padding: columns are the input itself
};

/// Row (channel, kernel position), column (output position): the input element that meets them, `outside` where the
/// window reaches over the border. `x` is one group of one image.
template <class T>
void im2col(const ConvGeometry& g, const T* x, T outside, T* columns);

/// Adds each column element back to where im2col took it from.
template <class T>
void col2im(const ConvGeometry& g, const T* columns, T* x);

/// Y = X * W + bias (null: none). Scratch memory belongs to the calling thread.
template <class T>
void convolve(const ConvGeometry& g, const T* x, const T* w, const T* bias, T* y);

/// dX (overwritten) from dY and W: the convolution transposed. `bias` per input channel is what dX starts from.
template <class T>
void convolve_backward_data(const ConvGeometry& g, const T* dy, const T* w, const T* bias, T* dx);

/// dW (overwritten) from X and dY.
template <class T>
void convolve_backward_weights(const ConvGeometry& g, const T* x, const T* dy, T* dw);

/// db[channel] = sum of dY over images and positions, in double precision.
template <class T>
void sum_channels(std::int64_t batch, std::int64_t channels, std::int64_t size, const T* dy, T* db);

}  // namespace backpass
