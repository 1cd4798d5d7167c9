// What the regex parser hands to the matcher.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace backpass {

using CharRanges = std::vector<std::pair<char32_t, char32_t>>;

/// What [:name:] stands for; null when there is no such class.
const CharRanges* posix_class(std::string_view name);
/// What \d, \w and \s stand for, by letter of either case (upper case means the complement); null for other letters.
const CharRanges* perl_class(char32_t letter);
/// All code points that are not in the ranges.
CharRanges complement(CharRanges ranges);

/// Ranges of code points, sorted or not; `negated` turns the answer around.
struct CharClass {
  CharRanges ranges;
  bool negated = false;

  bool has(char32_t code) const {
    for (const auto& [low, high] : ranges)
      if (code >= low && code <= high) return !negated;
    return negated;
  }
};

enum class RegexOp : std::uint8_t {
  consume,     ///< one code point of class `a`
  split,       ///< go on at `a` and at `b`
  jump,        ///< go on at `a`
  text_begin,  ///< the rest are conditions on the position
  text_end,
  line_begin,
  line_end,
  boundary,
  no_boundary,
  accept,
};

struct RegexInstruction {
  RegexOp op;
  std::int32_t a = 0;
  std::int32_t b = 0;
};

struct RegexCode {
  std::vector<RegexInstruction> code;
  std::vector<CharClass> classes;
};

RegexCode compile_regex(std::string_view pattern);

}  // namespace backpass
