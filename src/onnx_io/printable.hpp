// Names from files, made fit for messages.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace backpass::onnx_io {

/// `text` in quotes, at most 200 bytes of it, control characters replaced by '?': a name in a hostile file can neither
/// hide the rest of a message nor command a terminal.
inline std::string printable(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string out(text.substr(0, longest));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(out.begin(), out.end(), is_control, '?');
  return "'" + out + (text.size() > longest ? "...'" : "'");
}

}  // namespace backpass::onnx_io
