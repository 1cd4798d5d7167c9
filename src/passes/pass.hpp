// What a pass is, and what it may use to say what it did.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/report.hpp"
#include "graph/graph.hpp"

namespace backpass {

using Reports = std::vector<Report>;

/// On which side of differentiation a pass runs. A graph that is never differentiated gets those of both sides.
enum class Side : std::uint8_t { before = 1, after = 2, both = 3 };

/// `plans`: graphs that will be planned and run. `files`: graphs as a file has them, which goes on as a file: nodes in
/// any opset, types of inputs and outputs only, and nothing may come in that other runtimes do not know. `lowered`: a
/// plan's own copy of a graph, where operators may come in that no file holds.
enum class Graphs : std::uint8_t { plans = 1, files = 2, both = 3, lowered = 4, any = 7 };

struct Pass {
  std::string_view name;
  /// Rewrites one graph, not the bodies inside of its nodes, and says so. It leaves `Report::pass` to the manager.
  void (*run)(Graph& graph, Reports& reports);
  Side side;
  Graphs graphs;
  bool by_data = false;  ///< pays for some data only: runs where it is chosen by name
};

/// Bytes of these values together, and elements of one: for Report. Empty where a shape is not known.
std::string bytes_of(std::span<Value* const> values);
std::string bytes_of(const Value* value);
/// Minus the bytes of a value.
std::string lost_bytes_of(const Value& value);
std::string elements_of(const Value& value);
/// Operations of a node that works element by element; empty for others.
std::string operations_of(const Node& node);

}  // namespace backpass
