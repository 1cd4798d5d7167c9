// Whether extents follow from those of the inputs alone.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Runs shape rules upstream of the values asked for, believing nothing that the model merely declares: what is found
/// here, a binding finds too, without running a step.
class Extents {
 public:
  bool are_known(const Value* value);

 private:
  struct Found {
    Type type;
    std::optional<std::vector<Dim>> ints;
  };

  static Found as_it_is(const Value& v);
  void run_rule(const Node& node);

  std::unordered_map<const Value*, Found> found_;
};

}  // namespace backpass
