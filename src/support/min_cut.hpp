// The cheapest set of edges that separates two vertices of a directed graph: maximum flow by Dinic's method.
#pragma once

#include <cstdint>
#include <vector>

namespace backpass {

class FlowNetwork {
 public:
  /// An edge of this capacity is never worth cutting.
  static constexpr std::int64_t kUncut = std::int64_t{1} << 60;

  int add_vertex();
  void add_edge(int from, int to, std::int64_t capacity);

  /// Which vertices stand on the sink's side of a cheapest cut; of several such cuts the one closest to the sink. To be
  /// called once.
  std::vector<bool> sink_side(int source, int sink);

 private:
  struct Edge {
    int to;
    std::int64_t room;
  };

  bool find_levels(int source, int sink);
  std::int64_t push(int at, int sink, std::int64_t amount);

  std::vector<Edge> edges_;  // edge e and its reverse, e ^ 1, stand side by side
  std::vector<std::vector<int>> out_;
  std::vector<int> level_;
  std::vector<std::size_t> next_;
};

}  // namespace backpass
