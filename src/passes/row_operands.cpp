#include "passes/row_operands.hpp"

#include <algorithm>
#include <map>

#include "graph/op.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::constant_ints;
using Operands = std::optional<std::vector<RowOperand>>;
using Layouts = std::vector<std::optional<RowLayout>>;

const Shape* shape_of(const Value* v) {
  return v != nullptr && v->type.is_tensor() && v->type.shape ? &*v->type.shape : nullptr;
}

/// An operand that is stretched to a result: of each axis all, or nothing where its extent is 1.
std::optional<RowOperand> stretched(const Value* v, const RowLayout& out) {
  const Shape* shape = shape_of(v);
  if (shape == nullptr || shape->size() > out.rank()) return std::nullopt;
  RowOperand operand{RowLayout(), false};
  for (std::size_t i = 0; i < shape->size(); ++i) {
    const std::size_t axis = out.rank() - shape->size() + i;
    if ((*shape)[i].is(1)) {
      operand.layout->axes.emplace_back();
    } else if ((*shape)[i] == out.extent(axis)) {
      operand.layout->axes.push_back(out.axes[axis]);
    } else {
      return std::nullopt;
    }
  }
  const std::size_t rows = operand.layout->row_factors().size();
  operand.is_part = rows > 0 && rows < out.row_factors().size();
  return operand;
}

Operands pointwise(const Node& node, const Layouts& outputs) {
  std::vector<RowOperand> operands;
  for (const Value* v : node.inputs) {
    if (v == nullptr) {
      operands.emplace_back();
      continue;
    }
    const std::optional<RowOperand> operand = stretched(v, *outputs[0]);
    if (!operand) return std::nullopt;
    operands.push_back(*operand);
  }
  return operands;
}

/// Rows of the first input are those of the result; all other inputs are read whole.
Operands first_input(const Node& node, RowLayout layout) {
  std::vector<RowOperand> operands(node.inputs.size());
  operands[0].layout = std::move(layout);
  return operands;
}

bool has_rows_from(const RowLayout& layout, std::size_t axis) {
  for (std::size_t i = axis; i < layout.rank(); ++i) {
    if (layout.has_rows(i)) return true;
  }
  return false;
}

Operands same_layout(const Node& node, const Layouts& outputs) { return first_input(node, *outputs[0]); }

Operands along_one_axis(const Node& node, const Layouts& outputs) {
  const RowLayout& out = *outputs[0];
  if (out.has_rows(axis_from_front(node.attr_int("axis", -1), out.rank()))) return std::nullopt;
  return first_input(node, out);
}

Operands along_last_axes(const Node& node, const Layouts& outputs) {
  const RowLayout& out = *outputs[0];
  if (has_rows_from(out, axis_from_front(node.attr_int("axis", -1), out.rank()))) return std::nullopt;
  return first_input(node, out);
}

Operands dropout(const Node& node, const Layouts& outputs) {
  if (outputs.size() > 1 && outputs[1]) return std::nullopt;  // who reads the mask wants it where it was
  return first_input(node, *outputs[0]);
}

Operands matmul(const Node& node, const Layouts& outputs) {
  const Shape *x = shape_of(node.input(0)), *w = shape_of(node.input(1));
  if (x == nullptr || w == nullptr || w->size() != 2 || x->size() < 2) return std::nullopt;
  RowLayout layout = *outputs[0];
  if (layout.rank() != x->size() || layout.has_rows(layout.rank() - 1)) return std::nullopt;
  layout.axes.back() = feature_axis(x->back());
  return first_input(node, std::move(layout));
}

Operands gemm(const Node& node, const Layouts& outputs) {
  const RowLayout& out = *outputs[0];
  const Shape* x = shape_of(node.input(0));
  if (x == nullptr || node.attr_int("transA", 0) != 0 || out.rank() != 2 || out.has_rows(1)) return std::nullopt;
  Operands operands = first_input(node, RowLayout{{out.axes[0], feature_axis((*x)[1])}});
  if (node.input(2) != nullptr) {
    const std::optional<RowOperand> bias = stretched(node.input(2), out);
    if (!bias || bias->layout->has_rows()) return std::nullopt;
    (*operands)[2] = *bias;
  }
  return operands;
}

Operands transpose(const Node& node, const Layouts& outputs) {
  const RowLayout& out = *outputs[0];
  RowLayout in = out;
  const std::vector<std::int64_t> perm = node.attr_ints("perm");
  for (std::size_t i = 0; i < out.rank(); ++i) {
    in.axes[perm.empty() ? out.rank() - 1 - i : static_cast<std::size_t>(perm[i])] = out.axes[i];
  }
  return first_input(node, std::move(in));
}

Operands reshape(const Node& node, const Layouts& outputs) {
  const Shape* in = shape_of(node.input(0));
  std::optional<RowLayout> layout = in == nullptr ? std::nullopt : regrouped(*outputs[0], *in);
  return layout ? first_input(node, std::move(*layout)) : std::nullopt;
}

Operands expand(const Node& node, const Layouts& outputs) {
  const std::optional<RowOperand> operand = stretched(node.input(0), *outputs[0]);
  if (!operand) return std::nullopt;
  std::vector<RowOperand> operands(node.inputs.size());
  operands[0] = *operand;
  return operands;
}

Operands reduction(const Node& node, const Layouts& outputs) {
  const Shape* in = shape_of(node.input(0));
  const auto axes = constant_ints(node, 1, "axes");
  if (in == nullptr || !axes || axes->empty()) return std::nullopt;
  std::vector<bool> reduced(in->size(), false);
  for (std::int64_t axis : *axes) reduced[axis_from_front(axis, in->size())] = true;
  const bool keeps = node.attr_int("keepdims", 1) != 0;
  RowLayout layout;
  for (std::size_t i = 0, out = 0; i < in->size(); ++i) {
    layout.axes.push_back(reduced[i] ? feature_axis((*in)[i]) : outputs[0]->axes[out]);
    if (!reduced[i] || keeps) ++out;
  }
  return first_input(node, std::move(layout));
}

Operands split(const Node& node, const Layouts& outputs) {
  const auto any = std::find_if(outputs.begin(), outputs.end(), [](const auto& l) { return l.has_value(); });
  const Shape* in = shape_of(node.input(0));
  const std::size_t axis = axis_from_front(node.attr_int("axis", 0), in->size());
  RowLayout layout = **any;
  if (layout.has_rows(axis)) return std::nullopt;
  layout.axes[axis] = feature_axis((*in)[axis]);
  return first_input(node, std::move(layout));
}

Operands slice(const Node& node, const Layouts& outputs) {
  const Shape* in = shape_of(node.input(0));
  const auto axes = constant_ints(node, 3, "axes");
  if (in == nullptr || !axes) return std::nullopt;
  RowLayout layout = *outputs[0];
  for (std::int64_t a : *axes) {
    const std::size_t axis = axis_from_front(a, in->size());
    if (layout.has_rows(axis)) return std::nullopt;
    layout.axes[axis] = feature_axis((*in)[axis]);
  }
  return first_input(node, std::move(layout));
}

Operands concatenation(const Node& node, const Layouts& outputs) {
  const RowLayout& out = *outputs[0];
  const std::size_t axis = axis_from_front(node.attr_int("axis", 0), out.rank());
  if (out.has_rows(axis)) return std::nullopt;
  std::vector<RowOperand> operands;
  for (const Value* v : node.inputs) {
    const Shape* in = shape_of(v);
    if (in == nullptr) return std::nullopt;
    operands.push_back({out, false});
    operands.back().layout->axes[axis] = feature_axis((*in)[axis]);
  }
  return operands;
}

/// Rows of an embedding are those of the indices; features may be gathered, too.
Operands gather(const Node& node, const Layouts& outputs) {
  const Shape *data = shape_of(node.input(0)), *indices = shape_of(node.input(1));
  if (data == nullptr || indices == nullptr) return std::nullopt;
  const RowLayout& out = *outputs[0];
  const std::size_t axis = axis_from_front(node.attr_int("axis", 0), data->size());
  RowLayout of_data, of_indices;
  for (std::size_t i = 0; i < out.rank(); ++i) {
    const bool is_index = i >= axis && i < axis + indices->size();
    (is_index ? of_indices : of_data).axes.push_back(out.axes[i]);
  }
  std::vector<RowOperand> operands(2);
  if (of_indices.has_rows()) {
    if (of_data.has_rows() || axis != 0) return std::nullopt;
    operands[1].layout = std::move(of_indices);
    return operands;
  }
  of_data.axes.insert(of_data.axes.begin() + static_cast<std::ptrdiff_t>(axis), feature_axis((*data)[axis]));
  operands[0].layout = std::move(of_data);
  return operands;
}

using Rule = Operands (*)(const Node&, const Layouts&);

const std::map<std::string_view, Rule>& rules() {
  static const std::map<std::string_view, Rule> kRules{
      {"Identity", same_layout},
      {"StopGradient", same_layout},
      {"Dropout", dropout},
      {"Softmax", along_one_axis},
      {"LogSoftmax", along_one_axis},
      {"LayerNormalization", along_last_axes},
      {"RMSNormalization", along_last_axes},
      {"SimplifiedLayerNormalization", along_last_axes},
      {"MatMul", matmul},
      {"Gemm", gemm},
      {"Transpose", transpose},
      {"Reshape", reshape},
      {"Flatten", reshape},
      {"Squeeze", reshape},
      {"Unsqueeze", reshape},
      {"Expand", expand},
      {"ReduceMean", reduction},
      {"ReduceSum", reduction},
      {"ReduceMax", reduction},
      {"ReduceMin", reduction},
      {"ReduceL2", reduction},
      {"ReduceSumSquare", reduction},
      {"Split", split},
      {"Slice", slice},
      {"Concat", concatenation},
      {"Gather", gather},
  };
  return kRules;
}

bool only_first_output_is_read(const Layouts& outputs) {
  return outputs[0].has_value() &&
         std::none_of(outputs.begin() + 1, outputs.end(), [](const auto& l) { return l.has_value(); });
}

}  // namespace

std::optional<std::vector<RowOperand>> row_operands(const Node& node,
                                                    const std::vector<std::optional<RowLayout>>& outputs) {
  if (node.def == nullptr || !node.subgraphs.empty()) return std::nullopt;
  if (node.op == "Split" && node.domain.empty()) return split(node, outputs);
  if (!only_first_output_is_read(outputs)) return std::nullopt;
  if (node.def->tile != nullptr) return pointwise(node, outputs);
  const auto rule = rules().find(node.op);
  const bool is_known = rule != rules().end() &&
                        (node.domain.empty() || node.op == "StopGradient" || node.op == "SimplifiedLayerNormalization");
  return is_known ? rule->second(node, outputs) : std::nullopt;
}

}  // namespace backpass
