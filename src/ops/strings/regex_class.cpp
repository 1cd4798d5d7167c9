// The named classes of regular expressions.
#include <algorithm>

#include "ops/strings/regex_program.hpp"

namespace backpass {
namespace {

struct NamedClass {
  std::string_view name;
  CharRanges ranges;
};

const std::vector<NamedClass>& posix_classes() {
  static const std::vector<NamedClass> classes = {
      {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
      {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
      {"ascii", {{0, 0x7F}}},
      {"blank", {{' ', ' '}, {'\t', '\t'}}},
      {"cntrl", {{0, 0x1F}, {0x7F, 0x7F}}},
      {"digit", {{'0', '9'}}},
      {"graph", {{'!', '~'}}},
      {"lower", {{'a', 'z'}}},
      {"print", {{' ', '~'}}},
      {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
      {"space", {{'\t', '\r'}, {' ', ' '}}},
      {"upper", {{'A', 'Z'}}},
      {"word", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}},
      {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
  };
  return classes;
}

}  // namespace

const CharRanges* posix_class(std::string_view name) {
  const auto& all = posix_classes();
  const auto known = std::find_if(all.begin(), all.end(), [&](const NamedClass& c) { return c.name == name; });
  return known == all.end() ? nullptr : &known->ranges;
}

// RE2's \s has no vertical tab.
const CharRanges* perl_class(char32_t letter) {
  static const CharRanges digit = {{'0', '9'}};
  static const CharRanges word = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}};
  static const CharRanges space = {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}};
  switch (letter) {
    case 'd':
    case 'D':
      return &digit;
    case 'w':
    case 'W':
      return &word;
    case 's':
    case 'S':
      return &space;
    default:
      return nullptr;
  }
}

CharRanges complement(CharRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharRanges rest;
  char32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) rest.emplace_back(next, low - 1);
    next = std::max<char32_t>(next, high + 1);
  }
  if (next <= 0x10FFFF) rest.emplace_back(next, 0x10FFFF);
  return rest;
}

}  // namespace backpass
