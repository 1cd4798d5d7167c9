#include "gradient/scan_writer.hpp"

#include <utility>

#include "graph/infer.hpp"

namespace backpass {

ScanBody::ScanBody(const std::string& name) : b(*graph, nullptr, name) { graph->name = name; }

Value* ScanBody::state(std::string_view name, const Value* initial) {
  graph->inputs.push_back(graph->add_value(name, initial->type));
  return graph->inputs.back();
}

Value* ScanBody::step_of(std::string_view name, const Value* sequence) {
  Type type = sequence->type;
  if (type.shape) type.shape->erase(type.shape->begin());
  graph->inputs.push_back(graph->add_value(name, std::move(type)));
  return graph->inputs.back();
}

Value* ScanBody::capture(std::string_view name, Value* outer) {
  if (outer == nullptr) return nullptr;
  Value* inner = graph->add_value(name, outer->type);
  inner->constant = outer->constant;
  graph->add_capture(outer, inner);
  return inner;
}

std::vector<Value*> add_scan(Builder& b, const std::string& name, ScanBody body, std::vector<Value*> states,
                             const std::vector<Value*>& sequences, bool reverse) {
  const std::size_t scanned_outputs = body.graph->outputs.size() - states.size();
  std::vector<Value*> inputs = std::move(states);
  inputs.insert(inputs.end(), sequences.begin(), sequences.end());
  std::vector<Value*> outputs;
  for (std::size_t k = 0; k < body.graph->outputs.size(); ++k) outputs.push_back(b.graph.add_value(name));
  Node* scan = b.graph.add_node("Scan", std::move(inputs), outputs, name);
  const auto direction = static_cast<std::int64_t>(reverse);
  scan->attributes.emplace("num_scan_inputs", static_cast<std::int64_t>(sequences.size()));
  scan->attributes.emplace("scan_input_directions", std::vector<std::int64_t>(sequences.size(), direction));
  scan->attributes.emplace("scan_output_directions", std::vector<std::int64_t>(scanned_outputs, direction));
  b.graph.add_subgraph(*scan, "body", std::move(body.graph));
  infer_node(b.graph, *scan);
  return outputs;
}

}  // namespace backpass
