// Upsample: the older name of Resize, which it becomes at import.
#include <string>
#include <vector>

#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

// Upsample was withdrawn in opset 10; files that still use it mean its last form.
void lift_upsample(Builder& b, Node& node) {
  if (node.has_attribute("scales")) {
    const std::vector<float> scales = node.attr_floats("scales");
    const auto count = static_cast<std::int64_t>(scales.size());
    b.graph.set_input(node, 1, b.constant(Tensor::from<float>(DType::float32, {count}, scales)));
    node.attributes.erase("scales");
  }
  if (node.attr_string("mode", "") == "bilinear") node.attributes.insert_or_assign("mode", std::string("linear"));
  // As in Resize of opset 10, there was one way to find a source position.
  b.graph.set_inputs(node, {node.input(0), nullptr, node.input(1)});
  node.attributes.insert_or_assign("coordinate_transformation_mode", std::string("asymmetric"));
  node.attributes.insert_or_assign("nearest_mode", std::string("floor"));
  node.op = "Resize";
}
constexpr int kAnyOpset = 1 << 20;
const RegisterAdapter upsample{{.op = "Upsample", .below = kAnyOpset, .lift = lift_upsample}};

}  // namespace
}  // namespace backpass
