#include "plan/boundaries.hpp"

#include <algorithm>

namespace backpass {
namespace {

/// Per value: the last forward step that reads it or a view of it; -1 for none.
std::vector<int> last_forward_reads(const Outline& outline) {
  std::vector<int> last(outline.values.size(), -1);
  for (std::size_t s = 0; s < outline.steps.size(); ++s) {
    const Outline::Step& step = outline.steps[s];
    if (!step.runs || !step.is_forward) continue;
    for (int v : step.inputs) {
      last[static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root)] = static_cast<int>(s);
    }
  }
  return last;
}

}  // namespace

std::vector<Boundary> find_boundaries(const Outline& outline) {
  const std::vector<int> last = last_forward_reads(outline);
  std::vector<Boundary> result;
  Boundary lowest;
  std::vector<int> live;
  std::size_t bytes = 0, lowest_bytes = 0;
  bool falls = false;  // a boundary is where the bytes that go across have fallen and begin to rise
  for (std::size_t s = 0; s < outline.steps.size(); ++s) {
    const Outline::Step& step = outline.steps[s];
    if (!step.runs || !step.is_forward || step.is_view) continue;
    for (int v : step.outputs) {
      const auto at = static_cast<std::size_t>(v);
      if (!outline.values[at].is_choosable || last[at] <= static_cast<int>(s)) continue;
      live.push_back(v);
      bytes += outline.values[at].bytes;
    }
    std::erase_if(live, [&](int v) {
      const bool is_over = last[static_cast<std::size_t>(v)] <= static_cast<int>(s);
      if (is_over) bytes -= outline.values[static_cast<std::size_t>(v)].bytes;
      return is_over;
    });
    if (bytes > lowest_bytes && falls && !lowest.values.empty()) result.push_back(lowest);
    if (bytes != lowest_bytes) falls = bytes < lowest_bytes;
    lowest_bytes = bytes;
    lowest = {static_cast<int>(s), live};
  }
  return result;
}

std::vector<int> find_epochs(const Outline& outline) {
  std::vector<int> block(outline.steps.size(), 0);
  std::size_t next = 0;
  const std::vector<Boundary> boundaries = find_boundaries(outline);
  for (std::size_t s = 0; s < block.size(); ++s) {
    block[s] = static_cast<int>(next);
    if (next < boundaries.size() && boundaries[next].step == static_cast<int>(s)) ++next;
  }
  std::vector<int> epochs(outline.steps.size(), 0);
  int latest = 0;
  for (std::size_t s = epochs.size(); s-- > 0;) {
    const Outline::Step& step = outline.steps[s];
    if (!step.runs || step.is_forward) continue;
    for (int v : step.inputs) {
      const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
      if (outline.values[root].is_choosable) {
        latest = std::max(latest, block[static_cast<std::size_t>(outline.values[root].producer)]);
      }
    }
    epochs[s] = latest;
  }
  return epochs;
}

}  // namespace backpass
