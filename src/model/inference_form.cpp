#include "model/inference_form.hpp"

#include <algorithm>

namespace backpass {
namespace {

void convert(onnx_io::NodeProto& node) {
  if (!node.domain.empty()) return;
  if (node.op_type == "Dropout" && node.input.size() > 2) node.input.resize(2);
  if (node.op_type == "BatchNormalization") {
    // Training mode alone has the updated statistics as outputs.
    std::erase_if(node.attribute, [](const onnx_io::AttributeProto& a) { return a.name == "training_mode"; });
    node.output.resize(std::min<std::size_t>(node.output.size(), 1));
  }
}

void convert_all(std::vector<onnx_io::NodeProto>& nodes) {
  for (onnx_io::NodeProto& node : nodes) {
    convert(node);
    for (onnx_io::AttributeProto& a : node.attribute) {
      for (auto& graph : a.graphs) {
        graph = std::make_shared<onnx_io::GraphProto>(*graph);  // the original stays what it was
        convert_all(graph->node);
      }
    }
  }
}

}  // namespace

void make_inference_form(onnx_io::ModelProto& model) {
  convert_all(model.graph.node);
  for (onnx_io::FunctionProto& f : model.functions) convert_all(f.node);
}

}  // namespace backpass
