#include "plan/peak_estimate.hpp"

#include <algorithm>
#include <vector>

#include "plan/program.hpp"

namespace backpass {

PeakEstimate estimate_peak(const Graph& graph, const NominalSizes& sizes) {
  const std::unique_ptr<Program> program = make_program(graph);
  const Aliases& aliases = program->aliases;
  std::vector<std::int64_t> bytes(aliases.memories.size(), 0);
  for (std::size_t v = 0; v < program->values.size(); ++v) {
    const int memory = aliases.memory[v];
    if (memory >= 0) bytes[static_cast<std::size_t>(memory)] = sizes.bytes(*program->values[v]).value_or(0);
  }
  std::vector<std::int64_t> change(program->steps.size() + 1, 0);
  auto in_arena = [&](const Memory& m) {
    return m.home == Memory::Home::arena && aliases.is_needed[static_cast<std::size_t>(m.first)];
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const Memory& m = aliases.memories[i];
    if (!in_arena(m)) continue;
    change[static_cast<std::size_t>(m.first)] += bytes[i];
    change[std::min(static_cast<std::size_t>(m.last) + 1, program->steps.size())] -= bytes[i];
  }
  PeakEstimate found;
  int where = 0;
  std::int64_t live = 0;
  for (std::size_t at = 0; at < change.size(); ++at) {
    live += change[at];
    if (live <= found.bytes) continue;
    found.bytes = live;
    where = static_cast<int>(at);
  }
  for (std::size_t v = 0; v < program->values.size(); ++v) {
    if (aliases.memory[v] < 0) continue;
    const Memory& m = aliases.of(static_cast<int>(v));
    if (in_arena(m) && m.first <= where && where <= m.last) found.there.insert(program->values[v]);
  }
  return found;
}

}  // namespace backpass
