// Operators that call back into PyTorch or hand control to it. A graph that holds one needs the PyTorch front end.
#include "graph/builder.hpp"
#include "ops/op.hpp"

namespace backpass {
namespace {

void refuse(Builder&, Node& node) {
  fail<Unsupported>(
      node.label(), " operator: got ", node.domain, ".", node.op,
      ", which runs inside of PyTorch; export the model without it, or run it through the PyTorch front end");
}

constexpr int kAnyVersion = 1 << 20;
const RegisterAdapter aten{{.op = "ATen", .below = kAnyVersion, .lift = refuse, .domain = "com.microsoft"}};
const RegisterAdapter aten_own{{.op = "ATen", .below = kAnyVersion, .lift = refuse, .domain = "org.pytorch.aten"}};
const RegisterAdapter python{{.op = "PythonOp", .below = kAnyVersion, .lift = refuse, .domain = "com.microsoft"}};
const RegisterAdapter python_grad{
    {.op = "PythonOpGrad", .below = kAnyVersion, .lift = refuse, .domain = "com.microsoft"}};

}  // namespace
}  // namespace backpass
