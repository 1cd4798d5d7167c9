#include "ops/strings/regex.hpp"

#include <cstddef>
#include <vector>

#include "ops/strings/regex_program.hpp"
#include "support/utf8.hpp"

namespace backpass {

struct Regex::Program : RegexCode {};

namespace {

constexpr char32_t kNothing = 0xFFFFFFFF;  // before the first and after the last code point

bool is_word(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

bool holds(RegexOp condition, char32_t before, char32_t after) {
  switch (condition) {
    case RegexOp::text_begin:
      return before == kNothing;
    case RegexOp::text_end:
      return after == kNothing;
    case RegexOp::line_begin:
      return before == kNothing || before == '\n';
    case RegexOp::line_end:
      return after == kNothing || after == '\n';
    case RegexOp::boundary:
      return is_word(before) != is_word(after);
    default:
      return is_word(before) == is_word(after);
  }
}

/// The instructions that can be reached at one position of the text.
class Threads {
 public:
  explicit Threads(std::size_t size) : seen_(size, 0) {}

  void clear() {
    waiting_.clear();
    accepted_ = false;
    ++round_;
  }

  // Follows everything that consumes nothing.
  void add(const RegexCode& program, std::int32_t start, char32_t before, char32_t after) {
    stack_.push_back(start);
    while (!stack_.empty()) {
      const std::int32_t at = stack_.back();
      stack_.pop_back();
      std::size_t& mark = seen_[static_cast<std::size_t>(at)];
      if (mark == round_) continue;
      mark = round_;
      const RegexInstruction& i = program.code[static_cast<std::size_t>(at)];
      switch (i.op) {
        case RegexOp::consume:
          waiting_.push_back(at);
          break;
        case RegexOp::accept:
          accepted_ = true;
          break;
        case RegexOp::split:
          stack_.push_back(i.b);
          [[fallthrough]];
        case RegexOp::jump:
          stack_.push_back(i.a);
          break;
        default:
          if (holds(i.op, before, after)) stack_.push_back(at + 1);
      }
    }
  }

  const std::vector<std::int32_t>& waiting() const { return waiting_; }
  bool accepted() const { return accepted_; }

 private:
  std::vector<std::size_t> seen_;  ///< round in which the instruction was last reached
  std::size_t round_ = 0;
  std::vector<std::int32_t> waiting_, stack_;
  bool accepted_ = false;
};

}  // namespace

Regex::Regex(std::string_view pattern) : program_(std::make_unique<Program>(Program{compile_regex(pattern)})) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::matches_all(std::string_view text) const {
  std::size_t position = 0;
  auto read = [&] { return position < text.size() ? next_code_point(text, position) : kNothing; };
  Threads now(program_->code.size());
  Threads then(program_->code.size());
  char32_t before = kNothing;
  char32_t after = read();
  now.clear();
  now.add(*program_, 0, before, after);
  while (after != kNothing) {
    before = after;
    after = read();
    then.clear();
    for (std::int32_t at : now.waiting()) {
      const RegexInstruction& i = program_->code[static_cast<std::size_t>(at)];
      if (program_->classes[static_cast<std::size_t>(i.a)].has(before)) then.add(*program_, at + 1, before, after);
    }
    if (then.waiting().empty() && after != kNothing) return false;
    std::swap(now, then);
  }
  return now.accepted();
}

}  // namespace backpass
