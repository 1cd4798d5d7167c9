#include "model/needed_part.hpp"

#include <algorithm>

#include "backpass/error.hpp"

namespace backpass {
namespace {

/// Everything a node reads, by name: its inputs and whatever its subgraphs take from outside.
void add_reads(const onnx_io::NodeProto& node, NameSet& names) {
  names.insert(node.input.begin(), node.input.end());
  for (const onnx_io::AttributeProto& a : node.attribute) {
    for (const auto& graph : a.graphs) {
      for (const onnx_io::NodeProto& inner : graph->node) add_reads(inner, names);
      for (const onnx_io::ValueInfoProto& out : graph->output) names.insert(out.name);
    }
  }
}

NameSet keep_needed_nodes(std::vector<onnx_io::NodeProto>& nodes, std::span<const std::string> wanted) {
  NameSet needed(wanted.begin(), wanted.end());
  std::vector<bool> keep(nodes.size(), false);
  for (std::size_t i = nodes.size(); i-- > 0;) {
    keep[i] = std::any_of(nodes[i].output.begin(), nodes[i].output.end(),
                          [&](const std::string& name) { return !name.empty() && needed.count(name) != 0; });
    if (keep[i]) add_reads(nodes[i], needed);
  }
  std::size_t i = 0;
  std::erase_if(nodes, [&](const onnx_io::NodeProto&) { return !keep[i++]; });
  return needed;
}

void check_outputs(const onnx_io::GraphProto& graph, std::span<const std::string> outputs, const char* what) {
  if (outputs.empty()) fail(what, ": got no output names, expected at least one");
  NameSet known;
  for (const onnx_io::NodeProto& node : graph.node) known.insert(node.output.begin(), node.output.end());
  std::string problems;
  for (const std::string& name : outputs) {
    if (!name.empty() && known.count(name) != 0) continue;
    problems += concat("\n", what, ": output '", name, "' does not exist in the model; expected the result of one of ",
                       "its nodes");
  }
  if (!problems.empty()) fail(problems.substr(1));
}

}  // namespace

NameSet keep_needed(onnx_io::GraphProto& graph, std::span<const std::string> outputs, const char* what) {
  check_outputs(graph, outputs, what);
  NameSet needed = keep_needed_nodes(graph.node, outputs);
  auto is_not_needed = [&](const auto& named) { return needed.count(named.name) == 0; };
  std::erase_if(graph.initializer, is_not_needed);
  std::erase_if(graph.input, is_not_needed);
  std::erase_if(graph.value_info, is_not_needed);
  return needed;
}

}  // namespace backpass
