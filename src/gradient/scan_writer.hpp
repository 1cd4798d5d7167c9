// Scan nodes written by program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/builder.hpp"

namespace backpass {

/// The body of a Scan over the first axes of sequences, while it is being written: inputs in the order of the node's,
/// states first; outputs go to `graph->outputs`.
class ScanBody {
 public:
  explicit ScanBody(const std::string& name);

  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  Builder b;

  Value* state(std::string_view name, const Value* initial);
  Value* step_of(std::string_view name, const Value* sequence);
  Value* capture(std::string_view name, Value* outer);  ///< null for null
};

/// Adds the node at the end of the builder's graph; returns the final states and the stacked other outputs.
std::vector<Value*> add_scan(Builder& b, const std::string& name, ScanBody body, std::vector<Value*> states,
                             const std::vector<Value*>& sequences, bool reverse);

}  // namespace backpass
