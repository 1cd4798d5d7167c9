// Which passes the data of a batch are worth. Some rewrites pay only where there is much to leave out (Pass::by_data):
// rows without a label, tokens that are padding. Before a step runs, the rows that would be left are counted, by a
// program of just what finds them, and the step runs the plan of the graph with or without those passes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/report.hpp"
#include "backpass/session.hpp"
#include "graph/graph.hpp"
#include "plan/lower.hpp"

namespace backpass {

/// What was found in a batch, and what follows from it.
struct DataChoice {
  std::vector<std::string> passes = {};    ///< those that pay, for PassOptions::chosen; none: the graph as it is
  std::vector<RowDensity> densities = {};  ///< of every spot where rows are left out
  std::vector<Tensor> rows = {};           ///< those that are needed, at each
  std::vector<Tensor> extents = {};        ///< whose product is how many there are
};

/// The densities with what they are of each sequence.
std::vector<RowDensity> with_sequences(const DataChoice& choice);

/// Looks at batches. May be used from several threads at once.
class DataLooker {
 public:
  /// `forward`: the graph before any pass, which is not changed and need not stay. Passes that are disabled are never
  /// chosen, nor is any where SessionOptions::optimize is off or SessionOptions::sparse_threshold is 0.
  DataLooker(const Graph& forward, const SessionOptions& options, std::span<const Pass> passes = kEveryPass);
  ~DataLooker();

  /// Whether any data could make a difference. Where not, look() costs nothing and finds nothing.
  bool has_choice() const;

  /// `inputs`: one per input of the graph, in its order. Draws no random numbers.
  DataChoice look(std::span<const RuntimeValue> inputs) const;

  /// Why rows that could be left out are not looked for.
  const std::vector<Report>& reports() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace backpass
