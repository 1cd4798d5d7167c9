// ONNX Runtime's All: whether every element is true.
#include <algorithm>

#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) { c.set(0, DType::boolean, {}); }

Kernel prepare(PrepareContext& c) {
  const std::int64_t n = c.in(0).size();
  return [n](const KernelArgs& a) {
    const bool* x = a.in<bool>(0);
    *a.out<bool>(0) = std::all_of(x, x + n, [](bool element) { return element; });
  };
}

const Register kOp({.name = "All",
                    .domain = "com.microsoft",
                    .doc = "whether every element is true",
                    .types = types::boolean,
                    .infer = infer,
                    .prepare = prepare,
                    .is_flat = true});

}  // namespace
}  // namespace backpass
