// Identity: the value itself, of any type.
#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_type(0, c.type(0));
  if (!c.type(0).is_tensor()) return;
  if (auto values = c.maybe_ints(0)) movement::set_ints(c, 0, *std::move(values));
}

/// Sequences and optionals; tensors are planned as views.
void compute(ComputeContext& c) { c.outputs[0] = c.inputs[0]; }

void gradient(GradientContext& g) { g.set(0, g.dy()); }

const Register identity{{.name = "Identity",
                         .since = 25,
                         .doc = "The value itself: a tensor, a sequence or an optional.",
                         .types = {},
                         .infer = infer,
                         .prepare = movement::prepare_copy,
                         .compute = compute,
                         .gradient = gradient,
                         .is_view = true}};

}  // namespace
}  // namespace backpass
