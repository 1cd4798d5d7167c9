#include "model/parameters.hpp"

#include <algorithm>

#include "model/export.hpp"

namespace backpass {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

onnx_io::ValueInfoProto info_of(const onnx_io::TensorProto& tensor) {
  onnx_io::ValueInfoProto info;
  info.name = tensor.name;
  info.type = to_proto(Type::tensor(tensor.data_type, to_shape(tensor.dims)));
  return info;
}

std::vector<onnx_io::TensorProto> move_to_inputs(onnx_io::GraphProto& graph, const std::vector<std::string>& names) {
  std::vector<onnx_io::TensorProto> moved;
  for (const onnx_io::TensorProto& t : graph.initializer) {
    if (contains(names, t.name)) moved.push_back(t);
  }
  std::erase_if(graph.initializer, [&](const onnx_io::TensorProto& t) { return contains(names, t.name); });
  for (const onnx_io::TensorProto& t : moved) {
    std::erase_if(graph.input, [&](const onnx_io::ValueInfoProto& input) { return input.name == t.name; });
    graph.input.push_back(info_of(t));
  }
  return moved;
}

std::int64_t opset_of(const onnx_io::ModelProto& model) {
  for (const onnx_io::OpsetId& id : model.opset_import) {
    if (id.domain.empty()) return id.version;
  }
  return 1;
}

}  // namespace backpass
