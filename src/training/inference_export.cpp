#include "training/inference_export.hpp"

#include "model/export.hpp"
#include "model/import.hpp"
#include "model/inference_form.hpp"
#include "model/needed_part.hpp"

namespace backpass {
namespace {

void set_output_types(onnx_io::ModelProto& model, std::span<const std::string> outputs) {
  model.graph.output.clear();
  for (const std::string& name : outputs) {
    model.graph.output.emplace_back();
    model.graph.output.back().name = name;
  }
  Import import = import_model(model);
  throw_if_any(import.problems, model.opening);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    model.graph.output[i].type = to_proto(import.graph->outputs[i]->type);
  }
}

}  // namespace

onnx_io::ModelProto inference_model(const onnx_io::ModelProto& eval, const CheckpointState& state,
                                    std::span<const std::string> outputs) {
  if (state.is_nominal()) fail("export: got a nominal checkpoint state; load its parameters first");
  onnx_io::ModelProto model = eval;
  make_inference_form(model);
  const NameSet needed = keep_needed(model.graph, outputs, "export");
  for (const Parameter& p : state.parameters()) {
    if (needed.count(p.name) != 0) model.graph.initializer.push_back(to_proto(p.tensor, p.name));
  }
  std::erase_if(model.graph.input, [&](const auto& input) { return state.has_parameter(input.name); });
  set_output_types(model, outputs);
  return model;
}

}  // namespace backpass
