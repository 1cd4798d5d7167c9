// ImageDecoder: pixels of an encoded picture (BMP and the portable formats).
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "graph/op.hpp"
#include "ops/image/image.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

enum class Pixels : std::uint8_t { rgb, bgr, gray };

Pixels pixels_of(const Node& node) {
  const std::string format = node.attr_string("pixel_format", "RGB");
  if (format == "RGB") return Pixels::rgb;
  if (format == "BGR") return Pixels::bgr;
  if (format == "Grayscale") return Pixels::gray;
  fail(node.label(), " attribute 'pixel_format': got ", printable(format), ", expected RGB, BGR or Grayscale");
}

void infer(InferContext& c) {
  const std::int64_t channels = pixels_of(c.node) == Pixels::gray ? 1 : 3;
  c.set(0, DType::uint8, {c.data_dependent("height"), c.data_dependent("width"), channels});
  c.require(c.dtype(0) == DType::uint8, "element type: got ", name_of(c.dtype(0)), ", expected uint8");
}

std::optional<Image> decode(const ComputeContext& c, std::span<const std::uint8_t> file) {
  const std::string_view format = image_format(file);
  if (format == "BMP") return decode_bmp(file);
  if (format == "PNM") return decode_pnm(file);
  if (!format.empty())
    fail<Unsupported>(c.node.label(), " picture format: got ", format,
                      ", expected BMP or PNM; decode it before it enters the model");
  return std::nullopt;
}

// What cannot be decoded gives a picture without pixels, as the standard says.
void compute(ComputeContext& c) {
  const Tensor& stream = c.tensor(0);
  const Pixels pixels = pixels_of(c.node);
  const Image image = decode(c, stream.values<std::uint8_t>()).value_or(Image{});
  Tensor out(DType::uint8, {image.height, image.width, pixels == Pixels::gray ? 1 : 3});
  std::uint8_t* to = out.as<std::uint8_t>();
  for (std::size_t i = 0; i < image.rgb.size(); i += 3) {
    const std::uint8_t r = image.rgb[i], g = image.rgb[i + 1], b = image.rgb[i + 2];
    if (pixels == Pixels::gray) {
      // ITU-R 601 weights in 16 bits.
      *to++ = static_cast<std::uint8_t>((r * 19595U + g * 38470U + b * 7471U + 0x8000U) >> 16);
    } else {
      *to++ = pixels == Pixels::rgb ? r : b;
      *to++ = g;
      *to++ = pixels == Pixels::rgb ? b : r;
    }
  }
  c.outputs[0] = std::move(out);
}

const Register image_decoder{{.name = "ImageDecoder",
                              .since = 20,
                              .doc = "Pixels of an encoded picture (BMP and the portable formats).",
                              .inputs = {1, 1},
                              .types = DTypeSet{DType::uint8},
                              .infer = infer,
                              .compute = compute}};

}  // namespace
}  // namespace backpass
