#include "support/min_cut.hpp"

#include <gtest/gtest.h>

#include <random>

namespace backpass {
namespace {

struct Edge {
  int from;
  int to;
  std::int64_t capacity;
};

std::vector<bool> sink_side(int vertices, const std::vector<Edge>& edges) {
  FlowNetwork network;
  for (int v = 0; v < vertices; ++v) network.add_vertex();
  for (const Edge& e : edges) network.add_edge(e.from, e.to, e.capacity);
  return network.sink_side(0, vertices - 1);
}

std::int64_t cut_by(const std::vector<bool>& is_sinks, const std::vector<Edge>& edges) {
  std::int64_t sum = 0;
  for (const Edge& e : edges) {
    const bool is_cut = !is_sinks[static_cast<std::size_t>(e.from)] && is_sinks[static_cast<std::size_t>(e.to)];
    sum += is_cut ? e.capacity : 0;
  }
  return sum;
}

TEST(MinCut, AChainIsCutWhereItIsThinnest) {
  EXPECT_EQ(sink_side(4, {{0, 1, 3}, {1, 2, 1}, {2, 3, 2}}), (std::vector<bool>{false, false, true, true}));
}

TEST(MinCut, OfEqualCutsTheOneClosestToTheSink) {
  EXPECT_EQ(sink_side(4, {{0, 1, 2}, {1, 2, 2}, {2, 3, 2}}), (std::vector<bool>{false, false, false, true}));
}

TEST(MinCut, WhatIsOutOfReachIsNotTheSinks) {
  EXPECT_EQ(sink_side(3, {{0, 1, 5}}), (std::vector<bool>{false, false, true}));
}

TEST(MinCut, LongChainsNeedNoStack) {
  constexpr int kLength = 200000;
  std::vector<Edge> edges;
  for (int v = 0; v + 1 < kLength; ++v) edges.push_back({v, v + 1, v == kLength / 2 ? 1 : FlowNetwork::kUncut});
  const std::vector<bool> found = sink_side(kLength, edges);
  EXPECT_FALSE(found[kLength / 2]);
  EXPECT_TRUE(found[kLength / 2 + 1]);
}

/// All ways to part the vertices.
TEST(MinCut, NoCutIsCheaper) {
  constexpr int kVertices = 7;
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<Edge> edges;
    for (int i = 0; i < 14; ++i) {
      edges.push_back({static_cast<int>(random() % kVertices), static_cast<int>(random() % kVertices),
                       static_cast<std::int64_t>(random() % 6)});
    }
    const std::vector<bool> found = sink_side(kVertices, edges);
    ASSERT_FALSE(found.front());
    ASSERT_TRUE(found.back());
    const std::int64_t cost = cut_by(found, edges);
    for (unsigned choice = 0; choice < 1U << (kVertices - 2); ++choice) {
      std::vector<bool> other(kVertices, false);
      other.back() = true;
      for (int v = 1; v + 1 < kVertices; ++v) other[static_cast<std::size_t>(v)] = (choice >> (v - 1) & 1U) != 0;
      ASSERT_LE(cost, cut_by(other, edges));
      if (cost < cut_by(other, edges)) continue;
      for (std::size_t v = 0; v < kVertices; ++v) ASSERT_LE(found[v], other[v]) << "a cut closer to the sink";
    }
  }
}

}  // namespace
}  // namespace backpass
