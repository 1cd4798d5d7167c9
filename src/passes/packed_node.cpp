#include "passes/packed_node.hpp"

#include <algorithm>

#include "graph/op.hpp"
#include "ops/random/dropout.hpp"
#include "passes/pattern.hpp"
#include "passes/row_values.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::constant_ints;

std::vector<std::int64_t> packed_axes(const std::vector<std::int64_t>& axes, const RowLayout& layout) {
  std::vector<std::int64_t> result;
  result.reserve(axes.size());
  for (std::int64_t axis : axes) {
    result.push_back(static_cast<std::int64_t>(layout.packed_axis(axis_from_front(axis, layout.rank()))));
  }
  return result;
}

/// Axes in the order in which a transposition leaves them, rows first.
std::vector<std::int64_t> packed_perm(const Node& node, const RowLayout& in) {
  std::vector<std::int64_t> perm = node.attr_ints("perm"), result{0};
  if (perm.empty()) {
    for (std::size_t i = in.rank(); i-- > 0;) perm.push_back(static_cast<std::int64_t>(i));
  }
  for (std::int64_t axis : perm) {
    const auto from = static_cast<std::size_t>(axis);
    if (in.is_kept(from)) result.push_back(static_cast<std::int64_t>(in.packed_axis(from)));
  }
  return result;
}

Value* transposed(Builder& b, const PackedNode& p) {
  const std::vector<std::int64_t> perm = packed_perm(p.node, *p.operands[0].layout);
  if (std::is_sorted(perm.begin(), perm.end())) return p.inputs[0];
  return b.op("Transpose", {p.inputs[0]}, {{"perm", perm}});
}

/// As many rows as there are places, also of an operand that has none.
Value* expanded(Builder& b, const PackedNode& p) {
  const Dims kept = to_dims(p.out.kept_extents());
  Value* rows = p.operands[0].layout->has_rows() ? b.ints({1}) : b.op("Shape", {p.places});
  Value* shape = b.op("Concat", {rows, b.ints({kept.begin(), kept.end()})}, {{"axis", std::int64_t{0}}});
  return b.op("Expand", {p.inputs[0], shape});
}

/// Draws for each element what it would have drawn at its place in the whole tensor.
Value* dropped(Builder& b, const PackedNode& p) {
  Value* places = p.out.is_leading() ? p.places : local_places(b, p.out.row_factors(), p.places, p.extents);
  AttributeList attributes{{"stream", dropout::stream_name(p.node)}};
  if (p.node.has_attribute("seed")) attributes.emplace_back("seed", p.node.attr_int("seed"));
  std::vector<Value*> inputs = p.inputs;
  inputs.resize(3, nullptr);
  inputs.push_back(places);
  return b.op("RowDropout", inputs, attributes, "backpass");
}

/// The axis that an operator works along, where packed rows have it.
void set_axis(AttributeList& attributes, const Node& node, const RowLayout& layout, std::int64_t otherwise) {
  std::erase_if(attributes, [](const auto& entry) { return entry.first == "axis"; });
  attributes.emplace_back("axis", packed_axes({node.attr_int("axis", otherwise)}, layout).front());
}

std::vector<Value*> with_packed_axes(Builder& b, const PackedNode& p) {
  const Node& node = p.node;
  std::vector<Value*> inputs = p.inputs;
  AttributeList attributes(node.attributes.begin(), node.attributes.end());
  const bool is_embedding = node.op == "Gather" && p.operands[1].layout;
  const bool is_normalization = node.op.find("Normalization") != std::string::npos;
  if (node.op.rfind("Reduce", 0) == 0) {
    inputs[1] = b.ints(packed_axes(*constant_ints(node, 1, "axes"), *p.operands[0].layout));
  } else if (node.op == "Slice") {
    inputs[3] = b.ints(packed_axes(*constant_ints(node, 3, "axes"), *p.operands[0].layout));
  } else if (node.op == "Split" || (node.op == "Gather" && !is_embedding)) {
    set_axis(attributes, node, *p.operands[0].layout, 0);
  } else if (node.op == "Concat") {
    set_axis(attributes, node, p.out, 0);
  } else if (node.op == "Softmax" || node.op == "LogSoftmax" || is_normalization) {
    set_axis(attributes, node, p.out, -1);
  }
  return b.ops(node.op, inputs, node.op == "Split" ? node.outputs.size() : 1, attributes, node.domain);
}

}  // namespace

bool arranges(const Node& node) {
  return node.op == "Reshape" || node.op == "Flatten" || node.op == "Squeeze" || node.op == "Unsqueeze";
}

bool stretches(const Node& node) { return node.def->tile != nullptr || node.op == "Expand" || node.op == "Gemm"; }

std::vector<Value*> packed_results(Builder& b, PackedNode p) {
  const Node& node = p.node;
  if (node.def->tile != nullptr)
    return {b.op(node.op, p.inputs, {node.attributes.begin(), node.attributes.end()}, node.domain)};
  if (node.op == "Identity") return {p.inputs[0]};
  if (arranges(node)) return {with_kept(b, p.inputs[0], p.out.kept_extents())};
  if (node.op == "Transpose") return {transposed(b, p)};
  if (node.op == "Expand") return {expanded(b, p)};
  if (node.op == "Dropout") return {dropped(b, p)};
  return with_packed_axes(b, p);
}

}  // namespace backpass
