#include "passes/lift_reshape.hpp"

#include <algorithm>

#include "graph/builder.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "passes/axis_map.hpp"
#include "passes/free_shapes.hpp"

namespace backpass {
namespace {

bool has_axis_attribute(const Node& node) {
  return node.op.ends_with("LayerNormalization") || is_op(&node, "RMSNormalization") || is_op(&node, "Softmax") ||
         is_op(&node, "LogSoftmax");
}

bool is_row_wise(const Node& node) {
  if (node.def == nullptr) return false;
  return node.def->tile != nullptr || has_axis_attribute(node) || is_op(&node, "MatMul") || is_op(&node, "Dropout") ||
         is_op(&node, "Identity");
}

/// Extents behind the first axes, where all are numbers and none is 0.
std::optional<std::vector<std::int64_t>> row_extents(const Value* x, std::size_t axes) {
  std::vector<std::int64_t> extents{-1};
  const Shape& shape = *x->type.shape;
  for (std::size_t i = axes; i < shape.size(); ++i) {
    if (!shape[i].is_known() || shape[i].value() == 0) return std::nullopt;
    extents.push_back(shape[i].value());
  }
  return extents;
}

/// Read by the node alone, or for its shape, which can be had elsewhere.
bool is_read_by(const Graph& graph, const Value* v, const Node& node, std::vector<Node*>& shapes) {
  if (graph.is_output(v)) return false;
  for (Node* reader : v->readers) {
    if (is_op(reader, "Shape") && can_free_shape(graph, *reader)) {
      shapes.push_back(reader);
    } else if (reader != &node || node.input(0) != v) {
      return false;
    }
  }
  return true;
}

/// All of the first axes go with those of the input, or none does and it would not notice.
bool fits(const Node& node, std::size_t input, const std::vector<AxisMap>& maps) {
  const Value* x = node.inputs[input];
  if (x == nullptr) return true;
  std::size_t together = 0;
  for (std::size_t k = 0; k < maps.size(); ++k) {
    if (!maps[k][input]) continue;
    if (*maps[k][input] != k) return false;
    ++together;
  }
  if (together == maps.size()) return row_extents(x, maps.size()).has_value();
  const std::size_t rank = x->type.shape->size();
  const bool is_weight = is_op(&node, "MatMul") && input == 1 && rank == 2;
  return together == 0 && (is_weight || rank + maps.size() <= node.output(0)->type.shape->size());
}

}  // namespace

bool works_on_rows(const Node& node, std::size_t axes) {
  if (!is_row_wise(node) || !node.output(0)->type.shape || node.output(0)->type.shape->size() < axes) return false;
  for (std::size_t k = 1; k < node.outputs.size(); ++k) {
    if (node.outputs[k] != nullptr && !node.outputs[k]->readers.empty()) return false;
  }
  std::vector<AxisMap> maps;
  for (std::size_t k = 0; k < axes; ++k) {
    const auto map = axis_map(node, k);
    if (!map) return false;
    maps.push_back(*map);
  }
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (!fits(node, i, maps)) return false;
  }
  return maps.front().front().has_value();
}

std::size_t merged_axes(const Node& reshape) {
  if (!is_op(&reshape, "Reshape") && !is_op(&reshape, "Flatten")) return 0;
  if (!reshape.input(0)->type.shape || !reshape.output(0)->type.shape) return 0;
  const Shape& in = *reshape.input(0)->type.shape;
  const Shape& out = *reshape.output(0)->type.shape;
  if (out.empty() || in.size() <= out.size()) return 0;
  const std::size_t axes = in.size() - out.size() + 1;
  const auto rows = unless_it_overflows([&] { return product(std::span(in).first(axes)); });
  const bool is_same =
      rows && *rows == out[0] && std::equal(out.begin() + 1, out.end(), in.begin() + static_cast<std::ptrdiff_t>(axes));
  return is_same && row_extents(reshape.input(0), axes) ? axes : 0;
}

Value* with_rows(Graph& graph, Value* x, std::size_t axes, const Node* before) {
  const auto extents = row_extents(x, axes);
  if (!extents) return nullptr;
  for (const Node* reader : x->readers) {
    if (is_op(reader, "Reshape") && reader->input(0) == x && numbers_in(reader->input(1)) == extents) {
      return reader->output(0);
    }
  }
  Builder b(graph, before, x->name + "/rows");
  return b.op("Reshape", {x, b.ints(*extents)});
}

bool lift_reshape(Graph& graph, Node& reshape) {
  const std::size_t axes = merged_axes(reshape);
  Value* v = reshape.input(0);
  Node* node = axes == 0 ? nullptr : v->producer;
  std::vector<Node*> shapes;
  if (node == nullptr || v != node->output(0) || graph.is_output(reshape.output(0))) return false;
  if (!works_on_rows(*node, axes) || !is_read_by(graph, v, reshape, shapes)) return false;
  for (Node* shape : shapes) free_shape(graph, *shape);
  if (has_axis_attribute(*node)) {
    const auto rank = static_cast<std::int64_t>(v->type.shape->size());
    const std::int64_t axis = node->attr_int("axis", -1);
    node->attributes["axis"] = axis < 0 ? axis : axis - rank;
  }
  if (node->name.empty()) node->name = v->name;  // by which its random numbers go
  const AxisMap map = *axis_map(*node, 0);
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i]) graph.set_input(*node, i, with_rows(graph, node->input(i), axes, node));
  }
  infer_node(graph, *node);
  graph.replace_uses(reshape.output(0), v);
  graph.remove_node(&reshape);
  return true;
}

}  // namespace backpass
