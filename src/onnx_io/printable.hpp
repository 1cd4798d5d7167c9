// Names from files, made fit for messages.
#pragma once

#include <string>
#include <string_view>

#include "support/utf8.hpp"

namespace backpass::onnx_io {

/// `text` in quotes, at most 200 bytes of it, control characters and what is not UTF-8 replaced by '?': a name in a
/// hostile file can neither hide the rest of a message, nor command a terminal, nor break whoever decodes the message.
inline std::string printable(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string out = "'";
  std::size_t at = 0;
  while (at < text.size() && at < longest) {
    const std::size_t start = at;
    const char32_t code = next_code_point(text, at);
    const bool is_stray = code == 0xFFFD && at - start == 1;
    if (is_stray || code < 0x20 || code == 0x7f) {
      out += '?';
    } else {
      out += text.substr(start, at - start);
    }
  }
  return out + (at < text.size() ? "...'" : "'");
}

}  // namespace backpass::onnx_io
