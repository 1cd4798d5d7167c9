// UTF-8 to code points and back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace backpass {

/// Decodes the code point at `position` and moves past it. A byte that belongs to no valid sequence counts as U+FFFD.
inline char32_t next_code_point(std::string_view text, std::size_t& position) {
  constexpr char32_t kReplacement = 0xFFFD;
  const auto lead = static_cast<unsigned char>(text[position++]);
  if (lead < 0x80) return lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4) return kReplacement;
  char32_t code = lead & (0x3FU >> extra);
  std::size_t p = position;
  for (int i = 0; i < extra; ++i, ++p) {
    if (p >= text.size()) return kReplacement;
    const auto byte = static_cast<unsigned char>(text[p]);
    if ((byte & 0xC0U) != 0x80U) return kReplacement;
    code = (code << 6) | (byte & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[extra] || code > 0x10FFFF || is_surrogate) return kReplacement;
  position = p;
  return code;
}

inline void append_code_point(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0U | (code >> 6));
    text += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0U | (code >> 12));
    text += static_cast<char>(0x80U | ((code >> 6) & 0x3FU));
    text += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    text += static_cast<char>(0xF0U | (code >> 18));
    text += static_cast<char>(0x80U | ((code >> 12) & 0x3FU));
    text += static_cast<char>(0x80U | ((code >> 6) & 0x3FU));
    text += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

}  // namespace backpass
