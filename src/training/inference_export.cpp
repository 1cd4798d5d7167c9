#include "training/inference_export.hpp"

#include <algorithm>
#include <set>

#include "model/export.hpp"
#include "model/import.hpp"
#include "model/inference_form.hpp"

namespace backpass {
namespace {

using NameSet = std::set<std::string, std::less<>>;

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

/// Keeps the nodes that `wanted` depends on. Returns every name they read.
NameSet keep_needed(std::vector<onnx_io::NodeProto>& nodes, std::span<const std::string> wanted) {
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

void check_outputs(const onnx_io::GraphProto& graph, std::span<const std::string> outputs) {
  if (outputs.empty()) fail("export: got no output names, expected at least one");
  NameSet known;
  for (const onnx_io::NodeProto& node : graph.node) known.insert(node.output.begin(), node.output.end());
  std::string problems;
  for (const std::string& name : outputs) {
    if (known.count(name) == 0) {
      problems += concat("\nexport: output '", name, "' does not exist in the eval model; expected the result of one ",
                         "of its nodes");
    }
  }
  if (!problems.empty()) fail(problems.substr(1));
}

void set_output_types(onnx_io::ModelProto& model, std::span<const std::string> outputs) {
  model.graph.output.clear();
  for (const std::string& name : outputs) {
    model.graph.output.emplace_back();
    model.graph.output.back().name = name;
  }
  Import import = import_model(model);
  throw_if_any(import.problems);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    model.graph.output[i].type = to_proto(import.graph->outputs[i]->type);
  }
}

}  // namespace

onnx_io::ModelProto inference_model(const onnx_io::ModelProto& eval, const CheckpointState& state,
                                    std::span<const std::string> outputs) {
  if (state.is_nominal()) fail("export: got a nominal checkpoint state; load its parameters first");
  check_outputs(eval.graph, outputs);
  onnx_io::ModelProto model = eval;
  make_inference_form(model);
  NameSet needed = keep_needed(model.graph.node, outputs);
  std::erase_if(model.graph.initializer, [&](const auto& t) { return needed.count(t.name) == 0; });
  for (const Parameter& p : state.parameters()) {
    if (needed.count(p.name) != 0) model.graph.initializer.push_back(to_proto(p.tensor, p.name));
  }
  std::erase_if(model.graph.input,
                [&](const auto& input) { return needed.count(input.name) == 0 || state.has_parameter(input.name); });
  std::erase_if(model.graph.value_info, [&](const auto& v) { return needed.count(v.name) == 0; });
  set_output_types(model, outputs);
  return model;
}

}  // namespace backpass
