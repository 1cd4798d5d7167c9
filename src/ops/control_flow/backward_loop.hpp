// Going back through the iterations of a Loop by another Loop: what its states may be, sequences and tensors whose
// shape changes, a Scan could neither carry nor read slice by slice.
#pragma once

#include <vector>

#include "gradient/body.hpp"
#include "ops/control_flow/iteration_rule.hpp"

namespace backpass {

class BackwardLoop {
 public:
  /// `back`: the differentiated body. `count`: how many iterations there were, 0-D.
  BackwardLoop(GradientContext& g, const Iteration& iteration, Graph& back, Value* count);

  /// `inner` is the slice of `stacked` that belongs to the iteration.
  void read(Value* inner, Value* stacked);

  /// States that cannot be stacked: the iterations before this one are run once more, from the beginning. `body`: of
  /// the forward node; `inner`: what the iteration begins with in the differentiated body, null where nobody asks.
  void replay(const Graph& body, const std::vector<Value*>& inner);

  /// Adds the node; returns the final states. `states`: inputs of the body, in the order of its outputs.
  std::vector<Value*> emit(std::unique_ptr<Graph> back, const std::vector<Value*>& states, std::vector<Value*> initial);

 private:
  void replace(Value* inner, Value* with);

  GradientContext& g_;
  const Iteration& it_;
  Graph& back_;
  const Node* first_;  // what is written here comes before it
  Builder b_;
  Value* count_;
  Value* number_;     // of the backward iteration
  Value* condition_;  // always true
  Value* at_;         // number of the forward iteration
};

}  // namespace backpass
