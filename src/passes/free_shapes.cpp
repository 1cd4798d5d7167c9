#include "passes/free_shapes.hpp"

#include <algorithm>

namespace backpass {
namespace {

bool is_shape(const Node& node) { return node.op == "Shape" && node.domain.empty(); }

}  // namespace

ExtentValues::ExtentValues(const Graph& graph) {
  for (Value* v : graph.inputs) {
    if (!v->type.is_tensor() || !v->type.shape) continue;
    for (std::size_t i = 0; i < v->type.shape->size(); ++i) {
      const Dim& extent = (*v->type.shape)[i];
      const bool is_new = std::none_of(sources_.begin(), sources_.end(), [&](auto& s) { return s.extent == extent; });
      if (!extent.is_known() && is_new) sources_.push_back({extent, v, static_cast<std::int64_t>(i)});
    }
  }
}

std::optional<std::vector<const ExtentValues::Source*>> ExtentValues::factors(const Dim& extent) const {
  std::vector<const Source*> found;
  Dim rest = extent;
  for (const Source& source : sources_) {
    for (Dim next; !rest.is_known(); rest = next, found.push_back(&source)) {
      next = floor_div(rest, source.extent);
      if (!(next * source.extent == rest)) break;
    }
  }
  return rest.is(1) ? std::optional(found) : std::nullopt;
}

bool ExtentValues::has(const Dim& extent) const { return extent.is_known() || factors(extent); }

Value* ExtentValues::get(Builder& b, const Dim& extent) {
  if (extent.is_known()) return b.ints({extent.value()});
  const auto found = factors(extent);
  ensure(found.has_value(), "extent ", extent.str(), " that no input has");
  Value* product = nullptr;
  for (const Source* source : *found) {
    Value* factor = b.op("Shape", {source->value}, {{"start", source->axis}, {"end", source->axis + 1}});
    product = product == nullptr ? factor : b.op("Mul", {product, factor});
  }
  return product;
}

Value* ExtentValues::get(Builder& b, const Shape& shape) {
  if (is_known(shape)) {
    const Dims dims = to_dims(shape);
    return b.ints({dims.begin(), dims.end()});
  }
  std::vector<Value*> parts;
  for (const Dim& extent : shape) parts.push_back(get(b, extent));
  return parts.size() == 1 ? parts[0] : b.op("Concat", parts, {{"axis", std::int64_t{0}}});
}

bool can_free_shape(const Graph& graph, const Node& shape) {
  const Value* out = shape.output(0);
  if (!out->ints || graph.is_output(out)) return false;
  const ExtentValues extents(graph);
  return std::all_of(out->ints->begin(), out->ints->end(), [&](const Dim& d) { return extents.has(d); });
}

bool is_needed_by(const Graph& graph, const Value& v, const Node& reader) {
  if (graph.is_output(&v) || std::count(v.readers.begin(), v.readers.end(), &reader) != 1) return false;
  return std::all_of(v.readers.begin(), v.readers.end(), [&](const Node* node) {
    return node == &reader || (is_shape(*node) && can_free_shape(graph, *node));
  });
}

void free_shape(Graph& graph, Node& shape) {
  Builder b(graph, &shape, shape.output(0)->name);
  graph.replace_uses(shape.output(0), ExtentValues(graph).get(b, *shape.output(0)->ints));
  graph.remove_node(&shape);
}

void free_shapes(Graph& graph) {
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (is_shape(*node) && node->input(0)->producer != nullptr && can_free_shape(graph, *node))
      free_shape(graph, *node);
  }
  graph.remove_dead_nodes();
}

}  // namespace backpass
