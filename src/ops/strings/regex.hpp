// Regular expressions in RE2's syntax, for whole strings. Time is proportional to pattern size times string length for
// any input: all alternatives are followed at once, nothing is tried again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace backpass {

class Regex {
 public:
  /// InvalidInput when the pattern is not valid or too large, Unsupported for Unicode classes (\p{...}).
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// Whether the pattern matches all of the (UTF-8) text.
  bool matches_all(std::string_view text) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace backpass
