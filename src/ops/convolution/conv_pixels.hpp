// Where the windows of a convolution lie: worked out once per image size.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/conv.hpp"

namespace backpass {

/// Where each pixel's window begins, and which of its positions lie inside the image.
struct ConvPixels {
  std::vector<std::int64_t> start;    ///< empty: pixels follow each other as they do in the output
  std::vector<std::uint64_t> inside;  ///< empty: all of them, always
  std::uint64_t all = 0;
};

/// The same for all convolutions with these windows over an image of this size, while any of them is alive. A row of
/// the image has `row_elements` elements and a pixel `unit`; `padded` images have zeros around them already.
std::shared_ptr<const ConvPixels> shared_pixels(const ConvGeometry& g, std::int64_t row_elements, std::int64_t unit,
                                                bool padded);

}  // namespace backpass
