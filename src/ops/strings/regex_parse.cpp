// Pattern text to instructions, by recursive descent. Each piece of pattern becomes a stretch of code that is entered
// at its first instruction and left past its last one.
#include <algorithm>
#include <string>

#include "ops/strings/regex_program.hpp"
#include "ops/strings/regex_text.hpp"

namespace backpass {
namespace {

using Code = std::vector<RegexInstruction>;

constexpr std::size_t kMaxCode = 200000;
constexpr int kMaxRepeat = 1000;
constexpr int kMaxDepth = 200;

class Parser : private PatternText {
 public:
  using PatternText::PatternText;

  RegexCode run() {
    out_.code = alternatives();
    if (!at_end()) error("has a ')' without '('");
    out_.code.push_back({RegexOp::accept});
    return std::move(out_);
  }

 private:
  struct Flags {
    bool ignore_case = false, multi_line = false, dot_all = false;
  };

  void append(Code& to, const Code& from) const {
    if (to.size() + from.size() > kMaxCode) error("is too large when its repetitions are written out");
    const auto shift = static_cast<std::int32_t>(to.size());
    for (RegexInstruction i : from) {
      if (i.op == RegexOp::split || i.op == RegexOp::jump) i.a += shift, i.b += shift;
      to.push_back(i);
    }
  }

  Code alternatives() {
    if (++depth_ > kMaxDepth) error("nests deeper than ", kMaxDepth);
    Code left = sequence();
    while (take("|")) {
      const Code right = sequence();
      const auto left_size = static_cast<std::int32_t>(left.size());
      const auto right_size = static_cast<std::int32_t>(right.size());
      Code both{{RegexOp::split, 1, left_size + 2}};
      append(both, left);
      both.push_back({RegexOp::jump, left_size + 2 + right_size});
      append(both, right);
      left = std::move(both);
    }
    --depth_;
    return left;
  }

  Code sequence() {
    Code code;
    while (!at_end() && !sees("|") && !sees(")")) {
      Code piece = atom();
      while (repeat(piece)) {
      }
      append(code, piece);
    }
    return code;
  }

  // Applies *, +, ? or {n,m} to the piece; whether it is greedy makes no difference to what matches as a whole.
  bool repeat(Code& piece) {
    int least = 0;
    int most = -1;
    if (take("*")) {
    } else if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (!counts(least, most)) {
      return false;
    }
    take("?");
    Code out;
    for (int i = 0; i < least; ++i) append(out, piece);
    const auto size = static_cast<std::int32_t>(piece.size());
    if (most < 0) {
      Code loop{{RegexOp::split, 1, size + 2}};
      append(loop, piece);
      loop.push_back({RegexOp::jump, 0});
      append(out, loop);
    }
    for (int i = least; i < most; ++i) {
      Code optional{{RegexOp::split, 1, size + 1}};
      append(optional, piece);
      append(out, optional);
    }
    piece = std::move(out);
    return true;
  }

  // {n}, {n,} or {n,m}; anything else in braces is literal text.
  bool counts(int& least, int& most) {
    if (!sees("{")) return false;
    std::size_t p = at_ + 1;
    auto number = [&](int& value) {
      const std::size_t begin = p;
      for (value = 0; p < text_.size() && text_[p] >= '0' && text_[p] <= '9' && p - begin < 5; ++p)
        value = value * 10 + (text_[p] - '0');
      return p > begin;
    };
    if (!number(least)) return false;
    most = least;
    if (p < text_.size() && text_[p] == ',') {
      ++p;
      if (!number(most)) most = -1;
    }
    if (p >= text_.size() || text_[p] != '}') return false;
    if (least > kMaxRepeat || most > kMaxRepeat || (most >= 0 && most < least))
      error("repeats {", least, ",", most, "}, expected counts in order and up to ", kMaxRepeat);
    at_ = p + 1;
    return true;
  }

  Code one(CharClass which) {
    if (flags_.ignore_case) {
      const CharRanges original = which.ranges;
      for (const auto& [low, high] : original) {
        for (char32_t c = std::max<char32_t>(low, 'A'); c <= std::min<char32_t>(high, 'Z'); ++c)
          which.ranges.emplace_back(c + 32, c + 32);
        for (char32_t c = std::max<char32_t>(low, 'a'); c <= std::min<char32_t>(high, 'z'); ++c)
          which.ranges.emplace_back(c - 32, c - 32);
      }
    }
    out_.classes.push_back(std::move(which));
    return {{RegexOp::consume, static_cast<std::int32_t>(out_.classes.size()) - 1}};
  }
  Code literal(char32_t c) { return one({{{c, c}}, false}); }

  Code atom() {
    if (take("(")) return group();
    if (take("[")) return bracket();
    if (take("\\Q")) return quoted();
    if (take("\\")) return escape();
    if (take(".")) return flags_.dot_all ? one({{{0, 0x10FFFF}}, false}) : one({{{'\n', '\n'}}, true});
    if (take("^")) return {{flags_.multi_line ? RegexOp::line_begin : RegexOp::text_begin}};
    if (take("$")) return {{flags_.multi_line ? RegexOp::line_end : RegexOp::text_end}};
    if (sees("*") || sees("+") || sees("?")) error("repeats nothing");
    return literal(next());
  }

  // Flags set inside a group end with it; (?flags) alone is no group and changes the one around it.
  Code group() {
    const Flags outer = flags_;
    if (take("?")) {
      if (take("P<") || take("<")) {
        if (sees("=") || sees("!")) error("looks behind, which RE2 does not have");
        while (next() != '>') {
        }
      } else if (!set_flags()) {
        return {};
      }
    }
    Code code = alternatives();
    if (!take(")")) error("has a '(' without ')'");
    flags_ = outer;
    return code;
  }

  // What follows "(?". True when it opens a group: (?flags: rather than (?flags).
  bool set_flags() {
    bool value = true;
    for (;;) {
      switch (next()) {
        case ')':
          return false;
        case ':':
          return true;
        case '-':
          value = false;
          break;
        case 'i':
          flags_.ignore_case = value;
          break;
        case 'm':
          flags_.multi_line = value;
          break;
        case 's':
          flags_.dot_all = value;
          break;
        case 'U':
          break;
        default:
          error("has an unknown group after '(?'");
      }
    }
  }

  Code quoted() {
    Code code;
    while (!at_end() && !take("\\E")) append(code, literal(next()));
    return code;
  }

  Code escape() {
    const char32_t c = next();
    switch (c) {
      case 'A':
        return {{RegexOp::text_begin}};
      case 'z':
        return {{RegexOp::text_end}};
      case 'b':
        return {{RegexOp::boundary}};
      case 'B':
        return {{RegexOp::no_boundary}};
      case 'C':
        return one({{{0, 0x10FFFF}}, false});
      default:
        break;
    }
    if (const CharRanges* ranges = perl_class(c)) return one({*ranges, c == 'D' || c == 'W' || c == 'S'});
    return literal(escaped(c));
  }

  Code bracket() {
    CharClass which;
    which.negated = take("^");
    bool first = true;
    while (first || !sees("]")) {
      first = false;
      if (add_named(which.ranges)) continue;
      const char32_t low = class_member();
      char32_t high = low;
      if (sees("-") && !sees("-]")) {
        take("-");
        high = class_member();
        if (high < low) error("has a range that runs backwards");
      }
      which.ranges.emplace_back(low, high);
    }
    take("]");
    return one(std::move(which));
  }

  char32_t class_member() {
    if (!take("\\")) return next();
    return escaped(next());
  }

  // [:alpha:] or \d inside brackets.
  bool add_named(CharRanges& ranges) {
    CharRanges found;
    if (sees("[:")) {
      at_ += 2;
      const bool inverse = take("^");
      const std::size_t end = text_.find(":]", at_);
      const std::string_view name = text_.substr(at_, end == std::string_view::npos ? 0 : end - at_);
      const CharRanges* known = posix_class(name);
      if (known == nullptr) error("has an unknown class [:", std::string(name), ":]");
      at_ = end + 2;
      found = inverse ? complement(*known) : *known;
    } else if (sees("\\") && at_ + 1 < text_.size()) {
      const auto letter = static_cast<unsigned char>(text_[at_ + 1]);
      const CharRanges* perl = perl_class(letter);
      if (perl == nullptr) return false;
      at_ += 2;
      found = letter < 'a' ? complement(*perl) : *perl;
    } else {
      return false;
    }
    ranges.insert(ranges.end(), found.begin(), found.end());
    return true;
  }

  int depth_ = 0;
  Flags flags_;
  RegexCode out_;
};

}  // namespace

RegexCode compile_regex(std::string_view pattern) { return Parser(pattern).run(); }

}  // namespace backpass
