// Pictures in formats simple enough to need no library: BMP and the portable formats (PBM, PGM, PPM).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace backpass {

struct Image {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<std::uint8_t> rgb;  ///< rows from the top, three bytes per pixel
};

/// "BMP", "PNM", "JPEG", ... by the first bytes; empty when they tell nothing.
std::string_view image_format(std::span<const std::uint8_t> file);

/// Nothing when the file is broken; Unsupported when it uses a part of the format that is not implemented.
std::optional<Image> decode_bmp(std::span<const std::uint8_t> file);
std::optional<Image> decode_pnm(std::span<const std::uint8_t> file);

}  // namespace backpass
