#include "ops/custom/yield.hpp"

#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  std::vector<std::int64_t> seeds = c.node.attr_ints(kYieldSeeds);
  c.require(seeds.size() == c.node.outputs.size(), "attribute ", kYieldSeeds, ": got ", seeds.size(),
            " numbers, expected one per output (", c.node.outputs.size(), ")");
  for (std::size_t k = 0; k < seeds.size(); ++k) {
    c.require(seeds[k] >= 0 && seeds[k] < static_cast<std::int64_t>(c.input_count()), "attribute ", kYieldSeeds,
              ": got ", seeds[k], ", expected the number of an input");
    c.set_type(k, c.type(static_cast<std::size_t>(seeds[k])));
  }
}

void compute(ComputeContext& c) {
  fail<Unsupported>(c.node.label(),
                    " was run as an ordinary node: got a model whose backward pass waits for gradients "
                    "from outside; run it through the PyTorch front end");
}

// Random, so that nothing folds or merges it; flat, so that reverse mode stops at it.
const Register yield{{.name = "YieldOp",
                      .domain = "com.microsoft",
                      .doc = "Hands its inputs out and waits for gradients of those that `seeds` names.",
                      .inputs = {1, -1},
                      .outputs = {0, -1},
                      .types = {},
                      .infer = infer,
                      .compute = compute,
                      .is_flat = true,
                      .is_random = true,
                      .is_pause = true}};

}  // namespace
}  // namespace backpass
