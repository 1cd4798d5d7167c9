#include "ops/image/image.hpp"

#include <cstddef>

#include "backpass/error.hpp"

namespace backpass {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::int64_t kMaxSide = 1 << 20;
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 28;

bool has_sane_size(std::int64_t width, std::int64_t height) {
  return width > 0 && height > 0 && width <= kMaxSide && height <= kMaxSide && width * height <= kMaxPixels;
}

std::uint32_t little_endian(Bytes file, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= static_cast<std::uint32_t>(file[at + static_cast<std::size_t>(i)]) << (8 * i);
  return value;
}

struct BmpHeader {
  std::size_t pixels, palette;  ///< where they begin
  std::int64_t width, height;
  int bits;
  bool top_down;
};

std::optional<BmpHeader> read_bmp_header(Bytes file) {
  constexpr std::size_t kFileHeader = 14, kInfoHeader = 40;
  if (file.size() < kFileHeader + kInfoHeader) return std::nullopt;
  const std::uint32_t header_size = little_endian(file, 14, 4);
  const auto height = static_cast<std::int32_t>(little_endian(file, 22, 4));
  BmpHeader h{little_endian(file, 10, 4),
              kFileHeader + header_size,
              static_cast<std::int32_t>(little_endian(file, 18, 4)),
              height < 0 ? -std::int64_t{height} : height,
              static_cast<int>(little_endian(file, 28, 2)),
              height < 0};
  const std::uint32_t compression = little_endian(file, 30, 4);
  constexpr std::uint32_t kPlain = 0, kMasks = 3;
  const bool known_bits = h.bits == 8 || h.bits == 24 || h.bits == 32;
  if (header_size < kInfoHeader || !known_bits || !(compression == kPlain || (compression == kMasks && h.bits == 32)))
    fail<Unsupported>("BMP with ", h.bits, " bits per pixel and compression ", compression,
                      ": expected 8, 24 or 32 bits without compression");
  if (!has_sane_size(h.width, h.height)) return std::nullopt;
  return h;
}

/// Reads the words of a portable picture: numbers in text, between white space and comments.
class PnmReader {
 public:
  explicit PnmReader(Bytes file) : file_(file) {}

  // Negative when there is no number.
  std::int64_t number() {
    skip();
    std::int64_t value = -1;
    for (; at_ < file_.size() && file_[at_] >= '0' && file_[at_] <= '9'; ++at_) {
      value = (value < 0 ? 0 : value) * 10 + (file_[at_] - '0');
      if (value > kMaxPixels) return -1;
    }
    return value;
  }

  // A digit by itself: the pixels of a text bitmap need no space between them.
  std::int64_t digit() {
    skip();
    return at_ < file_.size() && (file_[at_] == '0' || file_[at_] == '1') ? file_[at_++] - '0' : -1;
  }

  Bytes rest() const { return file_.subspan(std::min(at_ + 1, file_.size())); }  // one white space follows the header

 private:
  void skip() {
    while (at_ < file_.size()) {
      if (file_[at_] == '#') {
        while (at_ < file_.size() && file_[at_] != '\n') ++at_;
      } else if (file_[at_] == ' ' || (file_[at_] >= '\t' && file_[at_] <= '\r')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  Bytes file_;
  std::size_t at_ = 2;  // past "P6"
};

struct PnmHeader {
  std::int64_t width, height, channels, largest;
  bool text, bitmap;
};

// Samples of the picture in order, 0 to header.largest; nothing when some are missing.
std::optional<std::vector<std::int64_t>> pnm_samples(const PnmHeader& h, PnmReader& reader) {
  const auto count = static_cast<std::size_t>(h.width * h.height * h.channels);
  std::vector<std::int64_t> samples(count);
  if (h.text) {
    for (std::int64_t& sample : samples) {
      sample = h.bitmap ? reader.digit() : reader.number();
      if (sample < 0 || sample > h.largest) return std::nullopt;
    }
    return samples;
  }
  const Bytes data = reader.rest();
  const auto width = static_cast<std::size_t>(h.width);
  const std::size_t size = h.largest > 255 ? 2 : 1;
  const std::size_t needed = h.bitmap ? (width + 7) / 8 * static_cast<std::size_t>(h.height) : count * size;
  if (data.size() < needed) return std::nullopt;
  for (std::size_t i = 0; i < count; ++i) {
    if (h.bitmap) {
      const std::size_t column = i % width;
      samples[i] = (data[i / width * ((width + 7) / 8) + column / 8] >> (7 - column % 8)) & 1;
    } else {
      samples[i] = size == 2 ? data[2 * i] * 256 + data[2 * i + 1] : data[i];
    }
  }
  return samples;
}

}  // namespace

std::string_view image_format(Bytes file) {
  auto begins = [&](std::string_view magic, std::size_t at = 0) {
    if (file.size() < at + magic.size()) return false;
    for (std::size_t i = 0; i < magic.size(); ++i)
      if (file[at + i] != static_cast<std::uint8_t>(magic[i])) return false;
    return true;
  };
  using namespace std::string_view_literals;
  if (begins("BM")) return "BMP";
  if (file.size() > 2 && file[0] == 'P' && file[1] >= '1' && file[1] <= '6') return "PNM";
  if (begins("\xff\xd8\xff")) return "JPEG";
  if (begins("\x89PNG")) return "PNG";
  if (begins("II*\0"sv) || begins("MM\0*"sv)) return "TIFF";
  if (begins("RIFF") && begins("WEBP", 8)) return "WebP";
  if (begins("\0\0\0\x0cjP"sv) || begins("\xff\x4f\xff\x51")) return "JPEG 2000";
  if (begins("GIF8")) return "GIF";
  return "";
}

std::optional<Image> decode_bmp(Bytes file) {
  const auto header = read_bmp_header(file);
  if (!header) return std::nullopt;
  const auto width = static_cast<std::size_t>(header->width), height = static_cast<std::size_t>(header->height);
  const std::size_t bytes = static_cast<std::size_t>(header->bits) / 8;
  const std::size_t stride = (width * bytes + 3) / 4 * 4;
  if (header->pixels > file.size() || file.size() - header->pixels < stride * height) return std::nullopt;
  Image image{header->width, header->height, std::vector<std::uint8_t>(width * height * 3)};
  std::uint8_t* out = image.rgb.data();
  for (std::size_t y = 0; y < height; ++y) {
    const std::size_t row = header->pixels + (header->top_down ? y : height - 1 - y) * stride;
    for (std::size_t x = 0; x < width; ++x, out += 3) {
      std::size_t at = row + x * bytes;
      if (bytes == 1) at = header->palette + file[at] * std::size_t{4};
      if (at + 3 > file.size()) return std::nullopt;
      out[0] = file[at + 2], out[1] = file[at + 1], out[2] = file[at];
    }
  }
  return image;
}

std::optional<Image> decode_pnm(Bytes file) {
  const int kind = file[1] - '0';  // 1 to 3 text, 4 to 6 bytes; bitmap, gray, colour
  PnmReader reader(file);
  PnmHeader h{reader.number(), reader.number(), kind % 3 == 0 ? 3 : 1, 1, kind <= 3, kind % 3 == 1};
  if (!h.bitmap) h.largest = reader.number();
  if (!has_sane_size(h.width, h.height) || h.largest < 1 || h.largest > 65535) return std::nullopt;
  const auto samples = pnm_samples(h, reader);
  if (!samples) return std::nullopt;
  Image image{h.width, h.height, {}};
  image.rgb.reserve(static_cast<std::size_t>(h.width * h.height * 3));
  for (std::int64_t sample : *samples) {
    // In a bitmap, 1 is black.
    const std::int64_t value = h.bitmap ? (1 - sample) * 255 : (sample * 255 + h.largest / 2) / h.largest;
    for (std::int64_t i = 0; i < 3 / h.channels; ++i) image.rgb.push_back(static_cast<std::uint8_t>(value));
  }
  return image;
}

}  // namespace backpass
