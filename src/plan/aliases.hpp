// Which values of a program lie in the same memory, where that is, and how long it is needed: decided once, for every
// number that symbols may stand for. The one place that knows of views, of results that are written over operands, and
// of results that are written straight to where the caller wants them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/dim.hpp"

namespace backpass {

struct Program;

/// A piece of memory, and the steps between which it is needed.
struct Memory {
  enum class Home : std::uint8_t {
    constant,  ///< with the model
    input,     ///< what the caller fed; behind the inputs stands what a pause gives
    arena,
    output,  ///< what the caller gets
    late,    ///< made while running: sequences, strings
  };
  Home home = Home::arena;
  int index = -1;               ///< of the input or output
  int first = -1;               ///< step that writes it first; -1: it is there before
  int last = -1;                ///< step that reads it last; Aliases::kEnd: the caller does; -1: nobody
  bool is_overwritten = false;  ///< of an input: a step writes its new contents there
  int over = -1;             ///< an operand it is written over, should numbers turn out to give both the same extents
  std::optional<Dim> bytes;  ///< nullopt where the model does not say
};

struct Aliases {
  static constexpr int kEnd = 1 << 30;

  std::vector<int> memory;       ///< per value: the number of its memory
  std::vector<Memory> memories;  ///< in the order of their first step
  std::vector<bool> is_needed;   ///< per step: somebody reads what it gives
  std::vector<int> last_read;    ///< per value itself, without those that share its memory

  const Memory& of(int value) const {
    return memories[static_cast<std::size_t>(memory[static_cast<std::size_t>(value)])];
  }
};

/// A value shares the memory of an operand that it is written over where both have the same extents whatever symbols
/// stand for; where that is left to numbers, Memory::over says so.
Aliases find_aliases(const Program& program);

}  // namespace backpass
