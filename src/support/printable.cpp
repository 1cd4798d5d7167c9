#include "support/printable.hpp"

#include <algorithm>

#include "support/utf8.hpp"

namespace backpass {
namespace {

/// One character of the text, and whether it is fit to be shown.
struct Character {
  std::string_view bytes;
  char32_t code;

  bool is_stray() const { return code == 0xFFFD && bytes.size() == 1; }
  bool is_control() const { return code < 0x20 || code == 0x7f; }
};

Character next_character(std::string_view text, std::size_t& at) {
  const std::size_t start = at;
  const char32_t code = next_code_point(text, at);
  return {text.substr(start, at - start), code};
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (next_character(text, at).is_stray()) return false;
  }
  return true;
}

bool is_text(std::string_view text) { return is_utf8(text) && text.find('\0') == std::string_view::npos; }

std::string readable(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size() && at < longest) {
    const Character c = next_character(text, at);
    if (c.is_stray() || (c.is_control() && c.code != '\n')) {
      out += '?';
    } else {
      out += c.bytes;
    }
  }
  return at < text.size() ? out + "..." : out;
}

std::string printable(std::string_view name) {
  constexpr std::size_t longest = 200;
  std::string shown = readable(name, longest);
  std::replace(shown.begin(), shown.end(), '\n', '?');
  return "'" + shown + "'";
}

}  // namespace backpass
