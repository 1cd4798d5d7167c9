#include "support/min_cut.hpp"

#include <algorithm>
#include <cstddef>

namespace backpass {

int FlowNetwork::add_vertex() {
  out_.emplace_back();
  return static_cast<int>(out_.size()) - 1;
}

void FlowNetwork::add_edge(int from, int to, std::int64_t capacity) {
  out_[static_cast<std::size_t>(from)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  out_[static_cast<std::size_t>(to)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

/// Distances from the source over edges that have room; false when the sink is out of reach.
bool FlowNetwork::find_levels(int source, int sink) {
  level_.assign(out_.size(), -1);
  level_[static_cast<std::size_t>(source)] = 0;
  std::vector<int> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto at = static_cast<std::size_t>(queue[i]);
    for (int e : out_[at]) {
      const Edge& edge = edges_[static_cast<std::size_t>(e)];
      int& level = level_[static_cast<std::size_t>(edge.to)];
      if (edge.room == 0 || level >= 0) continue;
      level = level_[at] + 1;
      queue.push_back(edge.to);
    }
  }
  return level_[static_cast<std::size_t>(sink)] >= 0;
}

/// Sends up to `amount` from a vertex to the sink, level by level. The path stands on a list and not on the call
/// stack, since it may be as long as the graph is.
std::int64_t FlowNetwork::push(int at, int sink, std::int64_t amount) {
  std::vector<int> path;  // edges
  const int source = at;
  while (at != sink) {
    const auto v = static_cast<std::size_t>(at);
    std::size_t& i = next_[v];
    while (i < out_[v].size()) {
      const Edge& edge = edges_[static_cast<std::size_t>(out_[v][i])];
      if (edge.room > 0 && level_[static_cast<std::size_t>(edge.to)] == level_[v] + 1) break;
      ++i;
    }
    if (i < out_[v].size()) {
      path.push_back(out_[v][i]);
      at = edges_[static_cast<std::size_t>(path.back())].to;
    } else if (at == source) {
      return 0;
    } else {  // a dead end
      at = edges_[static_cast<std::size_t>(path.back() ^ 1)].to;
      path.pop_back();
      ++next_[static_cast<std::size_t>(at)];
    }
  }
  for (int e : path) amount = std::min(amount, edges_[static_cast<std::size_t>(e)].room);
  for (int e : path) {
    edges_[static_cast<std::size_t>(e)].room -= amount;
    edges_[static_cast<std::size_t>(e ^ 1)].room += amount;
  }
  return amount;
}

std::vector<bool> FlowNetwork::sink_side(int source, int sink) {
  while (find_levels(source, sink)) {
    next_.assign(out_.size(), 0);
    while (push(source, sink, kUncut) > 0) {
    }
  }
  std::vector<bool> found(out_.size(), false);
  found[static_cast<std::size_t>(sink)] = true;
  std::vector<int> queue{sink};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (int e : out_[static_cast<std::size_t>(queue[i])]) {
      const int from = edges_[static_cast<std::size_t>(e)].to;
      if (edges_[static_cast<std::size_t>(e ^ 1)].room == 0 || found[static_cast<std::size_t>(from)]) continue;
      found[static_cast<std::size_t>(from)] = true;
      queue.push_back(from);
    }
  }
  return found;
}

}  // namespace backpass
