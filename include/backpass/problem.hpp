// One thing wrong with a model. Problems are collected, so that a user sees all of them at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backpass {

struct Problem {
  enum class Kind : std::uint8_t { invalid, unsupported };
  Kind kind = Kind::invalid;
  std::string node;  ///< name of the node at fault, empty when it is not about one node
  std::string op;    ///< its operator
  std::string text;  ///< `[Op 'node'] what was wrong: got ..., expected ...; do this`
};

/// Throws InvalidInput (or Unsupported, when every problem is of that kind) listing all of them; nothing when empty.
/// The message starts with `opening`, which names the file that they are about: "[file 'x.onnx'] ".
void throw_if_any(const std::vector<Problem>& problems, std::string_view opening = {});

}  // namespace backpass
