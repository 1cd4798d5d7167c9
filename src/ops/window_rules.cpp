// Window arithmetic of convolution and pooling.
#include <algorithm>
#include <limits>
#include <string>

#include "ops/shape_rules.hpp"
#include "support/printable.hpp"

namespace backpass::rules {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

std::vector<std::int64_t> counted(const Node& node, std::string_view key, std::size_t count, std::int64_t otherwise,
                                  std::int64_t least) {
  std::vector<std::int64_t> values = node.attr_ints(key);
  if (values.empty()) return std::vector<std::int64_t>(count, otherwise);
  if (values.size() != count) {
    fail(node.label(), " attribute ", key, " has ", values.size(), " values: expected ", count, " for ",
         key == "pads" ? count / 2 : count, " spatial axes");
  }
  for (std::int64_t v : values) {
    if (v < least || v > kLargest) {
      fail(node.label(), " attribute ", key, " holds ", v, ": expected a value in [", least, ", ", kLargest, "]");
    }
  }
  return values;
}

std::string auto_pad_of(const Node& node) {
  std::string mode = node.attr_string("auto_pad", "NOTSET");
  if (mode.empty()) mode = "NOTSET";
  if (mode != "NOTSET" && mode != "SAME_UPPER" && mode != "SAME_LOWER" && mode != "VALID") {
    fail(node.label(), " attribute auto_pad is ", printable(mode),
         ": expected NOTSET, SAME_UPPER, SAME_LOWER or VALID");
  }
  return mode;
}

bool is_same(const std::string& mode) { return mode == "SAME_UPPER" || mode == "SAME_LOWER"; }

std::int64_t reach(const Window& w) { return w.dilation * (w.kernel - 1) + 1; }

void resolve_same(Window& w, std::int64_t extent, bool upper) {
  std::int64_t out = (extent + w.stride - 1) / w.stride;
  std::int64_t total = std::max<std::int64_t>(0, (out - 1) * w.stride + reach(w) - extent);
  std::int64_t small = total / 2;
  w.pad_begin = upper ? small : total - small;
  w.pad_end = total - w.pad_begin;
}

}  // namespace

std::vector<Window> windows(const Node& node, std::span<const std::int64_t> kernel, std::span<const Dim> spatial) {
  std::size_t count = spatial.size();
  if (kernel.size() != count) {
    fail(node.label(), " kernel has ", kernel.size(), " axes: expected ", count, " for ", count,
         " spatial axes of the input");
  }
  std::string mode = auto_pad_of(node);
  std::vector<std::int64_t> strides = counted(node, "strides", count, 1, 1);
  std::vector<std::int64_t> dilations = counted(node, "dilations", count, 1, 1);
  std::vector<std::int64_t> pads = counted(node, "pads", 2 * count, 0, 0);
  std::vector<Window> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (kernel[i] < 1 || kernel[i] > kLargest) {
      fail(node.label(), " kernel extent of spatial axis ", i, ": got ", kernel[i], ", expected 1 to ", kLargest);
    }
    Window& w = result[i];
    w = {kernel[i], strides[i], dilations[i], 0, 0};
    if (mode == "NOTSET") {
      w.pad_begin = pads[i];
      w.pad_end = pads[count + i];
    } else if (is_same(mode) && spatial[i].is_known()) {
      resolve_same(w, spatial[i].value(), mode == "SAME_UPPER");
    }
  }
  return result;
}

Dim window_output(const Node& node, const Dim& in, const Window& w, bool ceil_mode) {
  if (is_same(auto_pad_of(node))) return ceil_div(in, w.stride);
  Dim room = in + (w.pad_begin + w.pad_end - reach(w));
  const std::int64_t least = ceil_mode ? 1 - w.stride : 0;  // rounding up, the last window may reach over the end
  if (room.is_known() && room.value() < least && !in.is(0)) {
    fail(node.label(), " window of ", reach(w), " elements is longer than the padded input: got ", in.str(), " + ",
         w.pad_begin, " + ", w.pad_end, "; use a larger input, more padding or a smaller kernel or dilation");
  }
  if (!ceil_mode) return max(floor_div(room, w.stride) + 1, 0);
  auto count = [&](const Dim& extent) {
    const Dim all = ceil_div(room + extent - in, w.stride) + 1;
    const Dim inside = floor_div(extent + (w.pad_begin - 1), w.stride) + 1;  // begin before the end padding
    return max(min(all, inside), 0);
  };
  // No element, no window, unless one fits into the padding.
  const Dim without = count(0);
  const bool fits = w.pad_begin + w.pad_end >= reach(w);
  return fits || without.is(0) ? count(in) : min(count(in), in * (without + 1));
}

}  // namespace backpass::rules
