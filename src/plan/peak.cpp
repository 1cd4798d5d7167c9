#include "plan/peak.hpp"

#include <algorithm>

namespace backpass {
namespace {

/// Of memory that begins with a step and of memory that is free after it.
struct Changes {
  std::vector<const Dim*> begin, end;
};

/// Contents that follow from extents alone are computed while binding and lie outside the arena.
std::vector<bool> held_by_bindings(const Program& program) {
  std::vector<bool> held(program.aliases.memories.size(), false);
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const int memory = program.aliases.memory[v];
    if (memory >= 0 && program.values[v]->ints) held[static_cast<std::size_t>(memory)] = true;
  }
  return held;
}

std::vector<std::string> unknown_sizes(const Program& program) {
  std::vector<std::string> names;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const int memory = program.aliases.memory[v];
    if (memory < 0) continue;
    const Memory& m = program.aliases.memories[static_cast<std::size_t>(memory)];
    const bool is_read = program.aliases.last_read[v] >= 0;
    if (is_read && m.home == Memory::Home::arena && !m.bytes) names.push_back(program.values[v]->name);
  }
  return names;
}

void keep_if_largest(const Dim& sum, std::vector<Dim>& sums) {
  if (std::any_of(sums.begin(), sums.end(), [&](const Dim& other) { return surely_at_most(sum, other); })) return;
  std::erase_if(sums, [&](const Dim& other) { return surely_at_most(other, sum); });
  sums.push_back(sum);
}

}  // namespace

Peak find_peak(const Program& program) {
  std::vector<Changes> changes(program.steps.size());
  const std::vector<bool> held = held_by_bindings(program);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Memory& m = program.aliases.memories[i];
    if (held[i] || m.home != Memory::Home::arena || !m.bytes) continue;
    if (!program.aliases.is_needed[static_cast<std::size_t>(m.first)]) continue;
    changes[static_cast<std::size_t>(m.first)].begin.push_back(&*m.bytes);
    const auto last = std::min(static_cast<std::size_t>(m.last), changes.size() - 1);
    changes[last].end.push_back(&*m.bytes);
  }
  Peak peak{{}, unknown_sizes(program)};
  Dim now = 0;
  for (const Changes& c : changes) {
    for (const Dim* bytes : c.begin) now = now + *bytes;
    if (!c.begin.empty()) keep_if_largest(now, peak.sums);
    for (const Dim* bytes : c.end) now = now - *bytes;
  }
  return peak;
}

std::string Peak::str() const {
  if (sums.empty()) return "0";
  if (sums.size() == 1) return sums.front().str();
  std::string text = "max(";
  for (const Dim& sum : sums) text += (&sum == &sums.front() ? "" : ", ") + sum.str();
  return text + ")";
}

}  // namespace backpass
