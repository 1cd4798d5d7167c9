// The text of a regular expression, read from left to right.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backpass/error.hpp"
#include "support/utf8.hpp"

namespace backpass {

class PatternText {
 public:
  explicit PatternText(std::string_view pattern) : text_(pattern) {
    constexpr std::size_t kMaxPattern = 65536;
    if (pattern.size() > kMaxPattern) error("is longer than ", kMaxPattern, " bytes");
  }

 protected:
  template <class... Args>
  [[noreturn]] void error(const Args&... args) const {
    fail("regular expression '", std::string(text_.substr(0, 100)), "' ", args..., " (at byte ", at_, ")");
  }

  bool at_end() const { return at_ >= text_.size(); }
  bool sees(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  bool take(std::string_view what) {
    if (!sees(what)) return false;
    at_ += what.size();
    return true;
  }
  char32_t next() {
    if (at_end()) error("ends too early");
    return next_code_point(text_, at_);
  }

  char32_t hex() {
    const bool braces = take("{");
    char32_t value = 0;
    for (int i = 0; braces ? !take("}") : i < 2; ++i) {
      const char32_t c = next();
      const bool digit = c >= '0' && c <= '9';
      const char32_t letter = c | 0x20U;
      if ((!digit && (letter < 'a' || letter > 'f')) || i > 6) error("has a wrong \\x escape");
      value = value * 16 + (digit ? c - '0' : letter - 'a' + 10);
    }
    if (value > 0x10FFFF) error("has a code point beyond 10FFFF");
    return value;
  }

  char32_t octal(char32_t first) {
    char32_t value = first - '0';
    for (int i = 0; i < 2 && !at_end() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
      value = value * 8 + (next() - '0');
    return value;
  }

  // The code point that a backslash and `c` stand for.
  char32_t escaped(char32_t c) {
    switch (c) {
      case 'a':
        return 7;
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'v':
        return 11;
      case 'x':
        return hex();
      case 'p':
      case 'P':
        fail<Unsupported>("regular expression: Unicode classes \\p{...}; write the ranges out");
      default:
        break;
    }
    if (c == '0' || (c >= '1' && c <= '7' && !at_end() && text_[at_] >= '0' && text_[at_] <= '7')) return octal(c);
    const bool is_letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (is_letter && c < 0x80) error("has an unknown escape");
    return c;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace backpass
