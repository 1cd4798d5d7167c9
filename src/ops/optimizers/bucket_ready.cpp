// BucketReady(gradients...) -> flag: tells that gradients which are sent together are complete, so that they are on
// their way to other processes while the rest of the backward pass is computed (training/gradient_buckets.hpp).
#include "graph/op.hpp"
#include "support/bucket_listener.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) { c.set(0, DType::boolean, {1}); }

Kernel prepare(PrepareContext& c) {
  const auto bucket = static_cast<std::size_t>(c.node.attr_int("bucket"));
  const std::size_t count = c.inputs.size();
  return [=](const KernelArgs& a) {
    if (BucketListener* listener = bucket_listener()) listener->complete(bucket, {a.inputs, count});
    *a.out<bool>(0) = true;
  };
}

const Register kOp({.name = "BucketReady",
                    .domain = "backpass",
                    .doc = "tells that gradients which are sent to other processes together are complete",
                    .inputs = {1, -1},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .is_random = true,
                    .is_lowered = true});

}  // namespace
}  // namespace backpass
