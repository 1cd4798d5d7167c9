#include "backpass/memory.hpp"
#include "model/parameters.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "training/module_session.hpp"

namespace backpass {
namespace {

constexpr int kMoments = 2;  // of AdamW

std::int64_t bytes_of(const onnx_io::TensorProto& tensor) {
  return static_cast<std::int64_t>(byte_size(tensor.data_type, element_count(tensor.dims)));
}

MemoryCheck check_model(const InferenceSession& session, onnx_io::ModelProto model, const MemoryRequest& request) {
  MemoryCheck found;
  found.inference = session.arena_need(request.sizes);
  for (const onnx_io::TensorProto& tensor : model.graph.initializer) found.constant_bytes += bytes_of(tensor);
  if (request.trainable.empty()) return found;
  for (const onnx_io::TensorProto& taken : move_to_inputs(model.graph, request.trainable)) {
    found.gradient_bytes += bytes_of(taken);
  }
  found.optimizer_bytes = kMoments * found.gradient_bytes;
  const std::string bytes = onnx_io::write_model(model);
  ModuleSession trained(bytes, nullptr, request.trainable, {}, {}, request.trainable);
  found.training = trained.arena_need(request.sizes);
  return found;
}

std::string line(std::string_view what, const ArenaNeed& need) {
  std::string text = concat(what, ": ", need.expression, " bytes of values");
  if (!need.unknown.empty()) text += concat(" and those of ", need.unknown.size(), " whose sizes are not known");
  if (need.bytes) text += concat("; ", *need.bytes, " bytes planned, scratch memory included");
  return text + "\n";
}

}  // namespace

std::string MemoryCheck::str() const {
  std::string text = line("inference", inference);
  if (training) text += line("training step", *training);
  text += concat("constants: ", constant_bytes, " bytes\n");
  if (!training) return text;
  text += concat("gradients: ", gradient_bytes, " bytes\nAdamW's moments: ", optimizer_bytes, " bytes\n");
  if (!training->bytes) return text;
  const std::int64_t all = *training->bytes + constant_bytes + gradient_bytes + optimizer_bytes;
  return text + concat("training in all: ", all, " bytes\n");
}

MemoryCheck check_memory(const std::filesystem::path& model, const MemoryRequest& request) {
  return check_model(InferenceSession(model), onnx_io::read_model(model), request);
}

MemoryCheck check_memory(std::string_view bytes, const MemoryRequest& request) {
  return check_model(InferenceSession(bytes, nullptr), onnx_io::read_model(bytes, nullptr), request);
}

}  // namespace backpass
