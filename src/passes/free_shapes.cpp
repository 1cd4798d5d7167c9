#include "passes/free_shapes.hpp"

#include <algorithm>

#include "graph/builder.hpp"

namespace backpass {
namespace {

struct Origin {
  Value* input = nullptr;
  std::size_t axis = 0;
};

std::optional<Origin> origin_of(const Graph& graph, const Dim& extent) {
  for (Value* input : graph.inputs) {
    if (!input->type.is_tensor() || !input->type.shape) continue;
    const Shape& shape = *input->type.shape;
    const auto found = std::find(shape.begin(), shape.end(), extent);
    if (found != shape.end()) return Origin{input, static_cast<std::size_t>(found - shape.begin())};
  }
  return std::nullopt;
}

Value* made(Builder& b, const Dim& extent) {
  if (extent.is_known()) return b.ints({extent.value()});
  const Origin origin = *origin_of(b.graph, extent);
  const auto axis = static_cast<std::int64_t>(origin.axis);
  return b.op("Shape", {origin.input}, {{"start", axis}, {"end", axis + 1}});
}

}  // namespace

bool can_free_shape(const Graph& graph, const Node& shape) {
  const Value* out = shape.output(0);
  if (!out->ints || graph.is_output(out)) return false;
  return std::all_of(out->ints->begin(), out->ints->end(),
                     [&](const Dim& d) { return d.is_known() || origin_of(graph, d); });
}

bool is_needed_by(const Graph& graph, const Value& v, const Node& reader) {
  if (graph.is_output(&v) || std::count(v.readers.begin(), v.readers.end(), &reader) != 1) return false;
  return std::all_of(v.readers.begin(), v.readers.end(), [&](const Node* node) {
    return node == &reader || (node->op == "Shape" && node->domain.empty() && can_free_shape(graph, *node));
  });
}

void free_shape(Graph& graph, Node& shape) {
  Builder b(graph, &shape, shape.output(0)->name);
  std::vector<Value*> extents;
  for (const Dim& d : *shape.output(0)->ints) extents.push_back(made(b, d));
  Value* all = extents.size() == 1 ? extents.front() : nullptr;
  if (extents.empty()) all = b.ints({});
  if (extents.size() > 1) all = b.op("Concat", extents, {{"axis", std::int64_t{0}}});
  graph.replace_uses(shape.output(0), all);
  graph.remove_node(&shape);
}

}  // namespace backpass
