#include <algorithm>
#include <cstdio>

#include "backpass/error.hpp"
#include "backpass/session.hpp"

namespace backpass {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 480;
constexpr double kMargin = 24;

std::string escaped(const std::string& text) {
  std::string safe;
  for (char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

/// Neighbours differ, and a value has the same colour every time.
std::string colour(std::size_t i) { return concat("hsl(", (i * 137) % 360, ",55%,65%)"); }

}  // namespace

std::string PlanReport::svg() const {
  const double per_step = kWidth / static_cast<double>(std::max<std::size_t>(live_bytes.size(), 1));
  const double per_byte = kHeight / static_cast<double>(std::max<std::int64_t>(peak_bytes, 1));
  auto x = [&](int step) { return kMargin + per_step * step; };
  auto y = [&](std::int64_t byte) { return kMargin + kHeight - per_byte * static_cast<double>(byte); };
  std::string picture = concat("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", number(kWidth + 2 * kMargin),
                               " ", number(kHeight + 2 * kMargin), "' font-family='sans-serif' font-size='12'>\n");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const PlannedBuffer& b = buffers[i];
    picture +=
        concat("<rect x='", number(x(b.first)), "' y='", number(y(b.offset + b.bytes)), "' width='",
               number(per_step * (b.last - b.first + 1)), "' height='", number(per_byte * static_cast<double>(b.bytes)),
               "' fill='", colour(i), "'><title>", escaped(b.name), " ", escaped(b.type), ", ", b.bytes,
               " bytes, steps ", b.first, " to ", b.last, "</title></rect>\n");
  }
  picture += "<polyline fill='none' stroke='black' points='";
  for (std::size_t s = 0; s < live_bytes.size(); ++s) {
    picture += concat(number(x(static_cast<int>(s)) + per_step / 2), ",", number(y(live_bytes[s])), " ");
  }
  picture += concat("'/>\n<text x='", number(kMargin), "' y='", number(kMargin - 8), "'>arena: ", peak_bytes,
                    " bytes over ", live_bytes.size(), " steps; line: bytes in use</text>\n</svg>\n");
  return picture;
}

}  // namespace backpass
