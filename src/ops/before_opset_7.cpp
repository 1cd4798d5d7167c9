// Adapters for models of opsets 1 to 6: what operators looked like before numpy broadcasting and implicit test mode.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

std::size_t rank_of(const Node& node, std::size_t input) {
  const Value* value = node.input(input);
  if (value == nullptr || !value->type.shape) {
    fail<Unsupported>(node.label(), " input ", input,
                      ": this form of opset 6 and older needs a known rank; convert with onnx.version_converter");
  }
  return value->type.shape->size();
}

// Input 1 gets `count` trailing extents of 1.
void append_ones(Builder& b, Node& node, std::size_t count) {
  const auto rank = static_cast<std::int64_t>(rank_of(node, 1));
  std::vector<std::int64_t> axes;
  for (std::size_t i = 0; i < count; ++i) axes.push_back(rank + static_cast<std::int64_t>(i));
  if (!axes.empty()) b.graph.set_input(node, 1, b.op("Unsqueeze", {node.inputs[1], b.ints(axes)}));
}

// broadcast=1, axis=k: the extents of B are those of A from axis k on. Without an axis they are the last ones, as in
// numpy.
void lift_broadcast(Builder& b, Node& node) {
  if (node.attr_int("broadcast", 0) != 0 && node.has_attribute("axis")) {
    const std::size_t rank = rank_of(node, 0);
    const std::int64_t given = node.attr_int("axis", 0);
    const std::int64_t axis = given < 0 ? given + static_cast<std::int64_t>(rank) : given;
    const std::size_t taken = rank_of(node, 1);
    if (axis < 0 || static_cast<std::size_t>(axis) + taken > rank) {
      fail(node.label(), " axis: got ", given, ", expected one from which ", taken, " of ", rank, " extents remain");
    }
    append_ones(b, node, rank - taken - static_cast<std::size_t>(axis));
  }
  node.attributes.erase("broadcast");
  node.attributes.erase("axis");
}

// A slope per channel had shape [C]; channels are axis 1.
void lift_prelu(Builder& b, Node& node) {
  const std::size_t rank = rank_of(node, 0);
  const Shape& slope = *node.inputs[1]->type.shape;
  if (rank_of(node, 1) == 1 && !slope[0].is(1) && rank > 2) append_ones(b, node, rank - 2);
}

void lift_gemm(Builder&, Node& node) { node.attributes.erase("broadcast"); }

void require_test_mode(Builder&, Node& node) {
  if (node.attr_int("is_test", 0) == 0) {
    fail<Unsupported>(node.label(), " is_test=0: the training form of opset 6 and older is not implemented");
  }
  node.attributes.erase("is_test");
}

void lift_reshape(Builder& b, Node& node) {
  b.graph.set_inputs(node, {node.input(0), b.ints(node.attr_ints("shape"))});
  node.attributes.erase("shape");
}

void lift_pad(Builder&, Node& node) {
  if (!node.has_attribute("paddings")) return;
  node.attributes["pads"] = node.attr_ints("paddings");
  node.attributes.erase("paddings");
}

void lift_concat(Builder&, Node& node) {
  if (!node.has_attribute("axis")) node.attributes["axis"] = std::int64_t{1};
}

void lift_cast(Builder&, Node& node) {
  static constexpr std::array<std::pair<std::string_view, DType>, 12> names{{{"FLOAT", DType::float32},
                                                                             {"DOUBLE", DType::float64},
                                                                             {"FLOAT16", DType::float16},
                                                                             {"INT8", DType::int8},
                                                                             {"INT16", DType::int16},
                                                                             {"INT32", DType::int32},
                                                                             {"INT64", DType::int64},
                                                                             {"UINT8", DType::uint8},
                                                                             {"UINT16", DType::uint16},
                                                                             {"UINT32", DType::uint32},
                                                                             {"UINT64", DType::uint64},
                                                                             {"BOOL", DType::boolean}}};
  const std::string to = node.attr_string("to");
  for (const auto& [name, dtype] : names) {
    if (name == to) {
      node.attributes["to"] = static_cast<std::int64_t>(dtype);
      return;
    }
  }
  fail(node.label(), " to: got \"", to, "\", expected the name of an element type such as \"FLOAT\"");
}

void refuse(Builder&, Node& node) {
  fail<Unsupported>(node.label(), " form of opset 5 and older: not implemented; convert with onnx.version_converter");
}

void refuse_second_input(Builder& b, Node& node) {
  if (node.input(1) != nullptr) refuse(b, node);
}

const RegisterAdapter adapters[] = {
    RegisterAdapter{{.op = "Add", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Sub", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Mul", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Div", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Pow", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "And", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Or", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Xor", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Equal", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Greater", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "Less", .below = 7, .lift = lift_broadcast}},
    RegisterAdapter{{.op = "PRelu", .below = 7, .lift = lift_prelu}},
    RegisterAdapter{{.op = "Gemm", .below = 7, .lift = lift_gemm}},
    RegisterAdapter{{.op = "BatchNormalization", .below = 7, .lift = require_test_mode}},
    RegisterAdapter{{.op = "Dropout", .below = 7, .lift = require_test_mode}},
    RegisterAdapter{{.op = "Reshape", .below = 5, .lift = lift_reshape}},
    RegisterAdapter{{.op = "Pad", .below = 2, .lift = lift_pad}},
    RegisterAdapter{{.op = "Concat", .below = 4, .lift = lift_concat}},
    RegisterAdapter{{.op = "Cast", .below = 6, .lift = lift_cast}},
    RegisterAdapter{{.op = "Tile", .below = 6, .lift = refuse}},
    RegisterAdapter{{.op = "Upsample", .below = 7, .lift = refuse}},
    RegisterAdapter{{.op = "Split", .below = 2, .lift = refuse_second_input}},
};

}  // namespace
}  // namespace backpass
