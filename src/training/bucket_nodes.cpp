#include "training/bucket_nodes.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "graph/op.hpp"
#include "graph/overwriting.hpp"
#include "plan/schedule.hpp"

namespace backpass {
namespace {

using Places = std::unordered_map<const Node*, std::ptrdiff_t>;

Places places_of(std::span<const Node* const> order) {
  Places places;
  for (const Node* node : order) places.emplace(node, static_cast<std::ptrdiff_t>(places.size()));
  return places;
}

std::ptrdiff_t place_of(const Places& places, const Value* value) {
  return value->producer == nullptr ? -1 : places.at(value->producer);
}

bool is_view(const Node* node) { return node != nullptr && node->def != nullptr && node->def->is_view; }

/// Whether a run writes the value where its caller wants it, and neither reads it again nor gives it out twice.
bool is_alone(const Graph& graph, const Value* value) {
  const Value* root = value;
  while (is_view(root->producer)) root = root->producer->input(0);
  if (root->producer == nullptr || root->constant) return false;
  const ValueSet same = values_in_memory_of(root);
  const auto given = std::count_if(graph.outputs.begin(), graph.outputs.end(),
                                   [&](const Value* output) { return same.contains(output); });
  if (given != 1) return false;
  return std::all_of(same.begin(), same.end(), [](const Value* v) {
    return std::all_of(v->readers.begin(), v->readers.end(), [](const Node* reader) { return is_view(reader); });
  });
}

/// The node behind this one in the graph; null at the end.
const Node* behind(const Graph& graph, std::ptrdiff_t place) {
  const auto next = static_cast<std::size_t>(place + 1);
  return next < graph.nodes().size() ? graph.nodes()[next] : nullptr;
}

Places places_in(const Graph& graph) {
  const std::vector<const Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  return places_of(nodes);
}

void give_own_memory(Graph& graph, std::size_t gradient) {
  Value*& output = graph.outputs[graph.first_gradient + gradient];
  if (is_alone(graph, output)) return;
  Value* copy = graph.add_value(output->name + "_alone", output->type);
  const std::ptrdiff_t place = place_of(places_in(graph), output);
  graph.add_node("PassThrough", {output}, {copy}, copy->name, "com.microsoft", behind(graph, place));
  output = copy;
}

}  // namespace

std::vector<std::size_t> completion_order(const Graph& graph) {
  const Places places = places_of(order_to_run(graph));
  std::vector<std::size_t> order(graph.gradient_count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return place_of(places, graph.outputs[graph.first_gradient + a]) <
           place_of(places, graph.outputs[graph.first_gradient + b]);
  });
  return order;
}

void add_bucket_nodes(Graph& graph, std::span<const std::vector<std::size_t>> buckets) {
  for (std::size_t i = 0; i < graph.gradient_count; ++i) give_own_memory(graph, i);
  std::vector<Value*> flags;
  for (const std::vector<std::size_t>& gradients : buckets) {
    const Places places = places_in(graph);
    std::vector<Value*> reads;
    std::ptrdiff_t last = -1;
    for (const std::size_t i : gradients) {
      reads.push_back(graph.outputs[graph.first_gradient + i]);
      last = std::max(last, place_of(places, reads.back()));
    }
    const std::string name = concat("bucket_", flags.size());
    Value* flag = graph.add_value(name + "_ready", Type::tensor(DType::boolean, Shape{1}));
    Node* node = graph.add_node("BucketReady", reads, {flag}, name, "backpass", behind(graph, last));
    node->attributes.insert_or_assign("bucket", static_cast<std::int64_t>(flags.size()));
    flags.push_back(flag);
  }
  const auto end = graph.outputs.begin() + static_cast<std::ptrdiff_t>(graph.first_gradient + graph.gradient_count);
  graph.outputs.insert(end, flags.begin(), flags.end());
  graph.gradient_count += flags.size();
}

}  // namespace backpass
