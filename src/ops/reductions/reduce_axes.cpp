#include "ops/reductions/reduce_axes.hpp"

#include <string_view>

namespace backpass {

std::vector<bool> reduced_axes(const Node& node, std::size_t rank, std::span<const std::int64_t> axes) {
  if (axes.empty()) return std::vector<bool>(rank, node.attr_int("noop_with_empty_axes", 0) == 0);
  std::vector<bool> reduced(rank, false);
  auto r = static_cast<std::int64_t>(rank);
  for (std::int64_t axis : axes) {
    if (axis < -r || axis >= r) fail(node.label(), " axis: got ", axis, ", expected one in [", -r, ", ", r, ")");
    auto i = static_cast<std::size_t>(axis < 0 ? axis + r : axis);
    if (reduced[i]) fail(node.label(), " axis ", axis, " is named twice");
    reduced[i] = true;
  }
  return reduced;
}

namespace {

using Join = Dim (*)(const Dim&, const Dim&);

Join join_of(std::string_view op) {
  if (op == "ReduceProd") return [](const Dim& a, const Dim& b) { return a * b; };
  if (op == "ReduceSum") return [](const Dim& a, const Dim& b) { return a + b; };
  if (op == "ReduceMax") return [](const Dim& a, const Dim& b) { return max(a, b); };
  if (op == "ReduceMin") return [](const Dim& a, const Dim& b) { return min(a, b); };
  return nullptr;
}

/// Shapes are sometimes multiplied or added up: known contents of an integer list become one known number.
void propagate_ints(InferContext& c, bool reduces) {
  auto values = c.maybe_ints(0);
  Join join = join_of(c.node.op);
  if (!values || values->empty() || join == nullptr || c.rank(0) != 1 || !reduces) return;
  std::optional<Dim> result = values->front();
  for (std::size_t i = 1; result && i < values->size(); ++i) {
    result = unless_it_overflows([&] { return join(*result, (*values)[i]); });
  }
  if (result) c.set_ints(0, {*result});
}

}  // namespace

void infer_reduce(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  std::vector<std::int64_t> axes;
  if (c.has_input(1)) {
    c.require(c.dtype(1) == DType::int64, "axes: got ", name_of(c.dtype(1)), ", expected int64");
    axes = c.known_ints(1);
  }
  std::vector<bool> reduced = reduced_axes(c.node, in.size(), axes);
  bool keep = c.node.attr_int("keepdims", 1) != 0;
  Shape out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!reduced[i]) {
      out.push_back(in[i]);
    } else if (keep) {
      out.emplace_back(1);
    }
  }
  c.set_shape(0, std::move(out));
  propagate_ints(c, !reduced.empty() && reduced[0]);
}

std::vector<bool> reduced_axes(const PrepareContext& c) {
  std::vector<std::int64_t> axes;
  if (c.has_input(1)) {
    c.require(c.in(1).constant != nullptr, "axes must be known before running");
    axes = c.in(1).constant->to_ints();
  }
  return reduced_axes(c.node, c.in(0).dims.size(), axes);
}

void axes_attribute_to_input(Builder& b, Node& node) {
  if (!node.has_attribute("axes")) return;
  std::vector<std::int64_t> axes = node.attr_ints("axes");
  node.attributes.erase("axes");
  if (axes.empty()) return;
  b.graph.set_inputs(node, {node.input(0), b.ints(std::move(axes))});
}

}  // namespace backpass
