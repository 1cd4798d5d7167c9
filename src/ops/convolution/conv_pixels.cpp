#include "ops/convolution/conv_pixels.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace backpass {
namespace {

/// Per output position along one axis: the kernel positions that lie inside along that axis.
std::vector<std::uint64_t> inside_axis(const ConvGeometry& g, std::size_t axis) {
  const std::int64_t positions = g.kernel_size();
  std::vector<std::uint64_t> masks(static_cast<std::size_t>(g.out[axis]), 0);
  for (std::int64_t o = 0; o < g.out[axis]; ++o) {
    std::uint64_t mask = 0;
    for (std::int64_t i = 0; i < positions; ++i) {
      std::int64_t k = axis == 0 ? i / g.kernel[1] : i % g.kernel[1];
      std::int64_t at = o * g.stride[axis] - g.pad_begin[axis] + k * g.dilation[axis];
      if (at >= 0 && at < g.in[axis]) mask |= std::uint64_t{1} << i;
    }
    masks[static_cast<std::size_t>(o)] = mask;
  }
  return masks;
}

void find_inside(const ConvGeometry& g, ConvPixels& pixels) {
  const std::vector<std::uint64_t> rows = inside_axis(g, 0);
  const std::vector<std::uint64_t> cols = inside_axis(g, 1);
  auto is_whole = [&](std::uint64_t mask) { return mask == pixels.all; };
  if (std::all_of(rows.begin(), rows.end(), is_whole) && std::all_of(cols.begin(), cols.end(), is_whole)) return;
  pixels.inside.resize(rows.size() * cols.size());
  auto to = pixels.inside.begin();
  for (std::uint64_t row : rows) {
    to = std::transform(cols.begin(), cols.end(), to, [row](std::uint64_t col) { return row & col; });
  }
}

ConvPixels make_pixels(const ConvGeometry& g, std::int64_t row_elements, std::int64_t unit, bool padded) {
  ConvPixels pixels;
  if (g.is_pointwise() && !padded) return pixels;
  const std::int64_t positions = g.kernel_size();
  pixels.all = positions == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << positions) - 1;
  if (!padded) find_inside(g, pixels);
  pixels.start.resize(static_cast<std::size_t>(g.out_size()));
  auto to = pixels.start.begin();
  for (std::int64_t i = 0; i < g.out[0]; ++i) {
    std::int64_t row = (i * g.stride[0] - (padded ? 0 : g.pad_begin[0])) * row_elements;
    std::int64_t col = -(padded ? 0 : g.pad_begin[1]);
    for (std::int64_t j = 0; j < g.out[1]; ++j, col += g.stride[1]) *to++ = row + col * unit;
  }
  return pixels;
}

}  // namespace

std::shared_ptr<const ConvPixels> shared_pixels(const ConvGeometry& g, std::int64_t row_elements, std::int64_t unit,
                                                bool padded) {
  Dims key{row_elements, unit, padded ? 1 : 0};
  for (const Dims* part : {&g.in, &g.out, &g.kernel, &g.stride, &g.dilation, &g.pad_begin}) {
    key.insert(key.end(), part->begin(), part->end());
  }
  static std::mutex mutex;
  static std::map<Dims, std::weak_ptr<const ConvPixels>> known;
  std::lock_guard lock(mutex);
  auto it = known.find(key);
  if (it != known.end()) {
    if (std::shared_ptr<const ConvPixels> pixels = it->second.lock()) return pixels;
  }
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto pixels = std::make_shared<const ConvPixels>(make_pixels(g, row_elements, unit, padded));
  known[std::move(key)] = pixels;
  return pixels;
}

}  // namespace backpass
