// StopGradient: the value itself, through which nothing flows back (torch's detach, regions under no_grad).
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_type(0, c.type(0));
  if (auto values = c.maybe_ints(0)) movement::set_ints(c, 0, *std::move(values));
}

const Register stop_gradient{{.name = "StopGradient",
                              .domain = "backpass",
                              .doc = "The value itself; its gradient is zero.",
                              .types = {},
                              .infer = infer,
                              .prepare = movement::prepare_copy,
                              .is_flat = true,
                              .is_view = true}};

}  // namespace
}  // namespace backpass
