// Pooling over windows of a plane (one channel of one image), any number of axes.
#pragma once

#include <cstdint>

#include "kernels/pool_windows.hpp"

namespace backpass {

/// y = largest element of each window; a NaN wins. `indices` (or null) receives where it was: its position in the whole
/// input, counted with the first spatial axis fastest when `column_major`. An empty window gives the lowest number.
template <class T>
void max_pool(const PoolWindows& windows, const T* x, T* y, std::int64_t* indices, bool column_major);

/// The same for images, [.., height, width], and windows of at most kMostPlaces elements: `places` receives where in
/// its window the element was, counted by rows of whole windows from the first element that is inside of the image.
inline constexpr std::int64_t kMostPlaces = 256;
template <class T>
void max_pool_places(const PoolWindows& windows, const T* x, T* y, std::uint8_t* places);

/// dx (overwritten) of max_pool_places. An empty window's share goes to the first element of its plane, as its index
/// says.
template <class T>
void max_pool_places_backward(const PoolWindows& windows, const T* dy, const std::uint8_t* places, T* dx);

/// y = mean of each window. Elements in the padding count as zeros when `count_padding`, else not at all.
template <class T>
void average_pool(const PoolWindows& windows, const T* x, T* y, bool count_padding);

/// dx (overwritten) of average_pool.
template <class T>
void average_pool_backward(const PoolWindows& windows, const T* dy, T* dx, bool count_padding);

/// y = (sum of |x|^p)^(1/p) of each window.
template <class T>
void lp_pool(const PoolWindows& windows, const T* x, T* y, double p);

}  // namespace backpass
