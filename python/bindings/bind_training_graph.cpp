#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.hpp"
#include "model/autocast.hpp"
#include "model/inference_form.hpp"
#include "model/training_graph.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "training/rewritten_model.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

nb::tuple build(const nb::bytes& model, const std::vector<std::string>& requires_grad,
                const std::vector<std::string>& frozen, const std::vector<std::string>& outputs) {
  const std::string_view bytes = view_of(model);
  std::string training, eval;
  {
    const Unlocked unlocked;
    TrainingModels models =
        build_training_models(onnx_io::read_model(bytes, nullptr), {requires_grad, frozen, outputs});
    training = onnx_io::write_model(models.training);
    eval = onnx_io::write_model(models.eval);
  }
  return nb::make_tuple(to_bytes(training), to_bytes(eval));
}

nb::bytes rewrite(const nb::bytes& model, const std::vector<std::string>& parameters) {
  const std::string_view bytes = view_of(model);
  auto is_parameter = [&](const std::string& name) {
    return std::find(parameters.begin(), parameters.end(), name) != parameters.end();
  };
  std::string rewritten;
  {
    const Unlocked unlocked;
    rewritten = onnx_io::write_model(rewritten_model(onnx_io::read_model(bytes, nullptr), is_parameter));
  }
  return to_bytes(rewritten);
}

/// A model from which a function made another.
template <void (*kChange)(onnx_io::ModelProto&)>
nb::bytes changed(const nb::bytes& model) {
  const std::string_view bytes = view_of(model);
  std::string made;
  {
    const Unlocked unlocked;
    onnx_io::ModelProto proto = onnx_io::read_model(bytes, nullptr);
    kChange(proto);
    made = onnx_io::write_model(proto);
  }
  return to_bytes(made);
}

}  // namespace

void bind_training_graph(nb::module_& m) {
  m.def("build_training_model", &build, nb::arg("model"), nb::arg("requires_grad"), nb::arg("frozen"),
        nb::arg("outputs"), "The training and the eval model of a model whose first output is the loss.",
        nb::sig("def build_training_model(model: bytes, requires_grad: list[str], frozen: list[str], outputs: "
                "list[str]) -> tuple[bytes, bytes]"));
  m.def("rewrite_training_model", &rewrite, nb::arg("model"), nb::arg("parameters"),
        "The training model with everything left out that need not be computed.",
        nb::sig("def rewrite_training_model(model: bytes, parameters: list[str]) -> bytes"));
  m.def("autocast_model", &changed<autocast>, nb::arg("model"),
        "The model with casts, so that matrix products, convolutions and attention run in bfloat16.",
        nb::sig("def autocast_model(model: bytes) -> bytes"));
  m.def("inference_form", &changed<make_inference_form>, nb::arg("model"),
        "The model as it evaluates: without dropout, with running statistics.",
        nb::sig("def inference_form(model: bytes) -> bytes"));
  m.def(
      "running_statistics",
      [](const nb::bytes& model) { return running_statistics(onnx_io::read_model(view_of(model), nullptr)); },
      nb::arg("model"), "Initializers that batch normalisations in training mode update.");
}
