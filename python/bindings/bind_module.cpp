#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "torch_exchange.hpp"
#include "training/module_session.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// A pass under way, given up at most once.
struct PendingPass {
  std::shared_ptr<ModuleSession::Pending> pass;
};

std::vector<RuntimeValue> from_torch(const nb::list& tensors) {
  std::vector<RuntimeValue> values;
  values.reserve(tensors.size());
  for (nb::handle t : tensors) values.push_back(t.is_none() ? RuntimeValue() : RuntimeValue(tensor_from_torch(t)));
  return values;
}

nb::list to_torch(std::vector<RuntimeValue> values) {
  nb::list result;
  for (RuntimeValue& v : values) result.append(v.is_tensor() ? tensor_to_torch(v.tensor) : nb::none());
  return result;
}

std::unique_ptr<ModuleSession> from_bytes(const nb::bytes& model, std::vector<std::string> requires_grad,
                                          const SessionOptions& options,
                                          const std::vector<std::string>& constant_outputs,
                                          const std::vector<std::string>& steady_inputs) {
  auto copy = std::make_shared<const std::string>(view_of(model));
  const Unlocked unlocked;
  return std::make_unique<ModuleSession>(*copy, copy, std::move(requires_grad), options, constant_outputs,
                                         steady_inputs);
}

nb::tuple forward(ModuleSession& session, const nb::list& inputs, bool keep, std::optional<std::uint64_t> seed) {
  std::vector<RuntimeValue> values = from_torch(inputs);
  std::vector<RuntimeValue> outputs;
  auto pending = std::make_unique<PendingPass>();
  {
    const Unlocked unlocked;
    if (keep) {
      pending->pass = session.forward(std::move(values), outputs, seed);
    } else {
      outputs = session.forward(std::move(values), seed);
    }
  }
  nb::object kept = keep ? nb::cast(std::move(pending)) : nb::none();
  return nb::make_tuple(to_torch(std::move(outputs)), kept);
}

const ModuleSession::Pending& given(const PendingPass& pending) {
  if (pending.pass == nullptr) {
    fail(
        "backward: got a forward pass whose backward pass has run already; what it needed is freed. Run forward again");
  }
  return *pending.pass;
}

nb::list backward(ModuleSession& session, PendingPass& pending, const nb::list& seeds, bool keep) {
  given(pending);
  std::vector<RuntimeValue> values = from_torch(seeds);
  std::vector<RuntimeValue> gradients;
  {
    const Unlocked unlocked;
    gradients = session.backward(keep ? pending.pass : std::move(pending.pass), values);
  }
  return to_torch(std::move(gradients));
}

bool repeats(const ModuleSession& session, const PendingPass& pending, const nb::list& seeds) {
  std::vector<bool> arrived;
  for (nb::handle seed : seeds) arrived.push_back(!seed.is_none());
  return pending.pass == nullptr || session.repeats(*pending.pass, std::move(arrived));
}

/// What may build a graph may wait for rules of users, and those for the interpreter lock.
template <auto kMethod>
auto unlocked(ModuleSession& session) {
  const Unlocked release;
  return (session.*kMethod)();
}

PlanReport plan(ModuleSession& session, const nb::list& inputs) {
  std::vector<RuntimeValue> values = from_torch(inputs);
  const Unlocked unlocked;
  return session.plan(values);
}

nb::list tensors_from_torch(const nb::list& tensors) {
  nb::list result;
  for (nb::handle t : tensors) result.append(nb::cast(tensor_from_torch(t)));
  return result;
}

nb::list tensors_to_torch(const nb::list& tensors) {
  nb::list result;
  for (nb::handle t : tensors) result.append(tensor_to_torch(nb::cast<const Tensor&>(t)));
  return result;
}

}  // namespace

void bind_module(nb::module_& m) {
  m.def("tensors_from_torch", &tensors_from_torch, nb::arg("tensors"),
        nb::sig("def tensors_from_torch(tensors: list) -> list[Tensor]"),
        "The memory of torch tensors, which they share; what is not contiguous is copied.");
  m.def("tensors_to_torch", &tensors_to_torch, nb::arg("tensors"),
        nb::sig("def tensors_to_torch(tensors: list[Tensor]) -> list"), "torch tensors over the same memory.");
  nb::class_<PendingPass>(m, "Pending", "A forward pass whose backward pass is still to come.")
      .def_prop_ro(
          "graph", [](const PendingPass& p) { return ModuleSession::graph_number(given(p)); },
          "Which of the session's graphs it runs.")
      .def(
          "read_by_backward", [](const PendingPass& p) { return ModuleSession::read_by_backward(given(p)); },
          "Numbers of the inputs and outputs whose contents backward() reads, also through views of them: the same of "
          "all passes of one graph.");
  nb::class_<ModuleSession>(m, "ModuleSession",
                            "Runs the graph of a torch module on torch tensors, forward now and backward later.")
      .def_static(
          "from_bytes", &from_bytes, nb::arg("model"), nb::arg("requires_grad"), nb::arg("options"),
          nb::arg("constant_outputs") = std::vector<std::string>(),
          nb::arg("steady_inputs") = std::vector<std::string>(),
          "`requires_grad`: names of graph inputs whose gradients backward() gives. `constant_outputs`: names "
          "of outputs that are not to be differentiated, such as new values of buffers. `steady_inputs`: names of "
          "inputs that backward() may read even where it need not, parameters.")
      .def("is_random", &ModuleSession::is_random, "Whether a pass draws random numbers.")
      .def("forward", &forward, nb::arg("inputs"), nb::arg("keep"), nb::arg("seed") = nb::none(),
           nb::sig(
               "def forward(self, inputs: list, keep: bool, seed: int | None = None) -> tuple[list, Pending | None]"),
           "Outputs as new tensors, and with `keep` what backward() needs. `seed`: of the random numbers of this pass.")
      .def("backward", &backward, nb::arg("pending"), nb::arg("seeds"), nb::arg("keep") = false,
           "One gradient per name of requires_grad, None where nothing flows back. `seeds`: one per output or None. "
           "With `keep` it may be called again, repeating the forward pass.")
      .def("memory_excess", &ModuleSession::memory_excess,
           "Bytes that passes take which max_memory turned out not to suffice for after their forward pass; 0 when it "
           "does.")
      .def("repeats", &repeats, nb::arg("pending"), nb::arg("seeds"),
           "Whether backward() would repeat the forward pass and so read all of its inputs again.")
      .def(
          "read_by_backward",
          [](ModuleSession& s) {
            const Unlocked release;
            return s.read_by_backward();
          },
          "Numbers of the inputs and outputs whose contents backward() reads after the latest pass, or one whose data "
          "are dense.")
      .def("inputs", &ModuleSession::inputs)
      .def("outputs", &ModuleSession::outputs)
      .def("requires_grad", &ModuleSession::requires_grad)
      .def("differentiable_outputs", &ModuleSession::differentiable_outputs)
      .def("depends_on", &ModuleSession::depends_on, nb::arg("output"),
           "Names among requires_grad that an output depends on differentiably, be it constant or not.")
      .def("plan", &plan, nb::arg("inputs"))
      .def(
          "training_model", [](ModuleSession& s) { return to_bytes(unlocked<&ModuleSession::training_model>(s)); },
          "The ONNX model with gradients and YieldOp, before optimisation.")
      .def(
          "execution_model", [](ModuleSession& s) { return to_bytes(unlocked<&ModuleSession::execution_model>(s)); },
          "The same after optimisation, before it is laid out for running: an ONNX model, which backpass can load "
          "again.")
      .def("graph_text", &unlocked<&ModuleSession::graph_text>)
      .def("rewrites", &unlocked<&ModuleSession::rewrites>)
      .def("pass_reports", &unlocked<&ModuleSession::pass_reports>)
      .def("pass_times", &unlocked<&ModuleSession::pass_times>)
      .def("densities", &unlocked<&ModuleSession::densities>,
           "What the latest batch is like, and how often which passes were chosen by the data of batches.")
      .def("data_report", &unlocked<&ModuleSession::data_report>,
           "The same with operations and bytes of a step, building what has to be known for that.")
      .def("take_profile", &ModuleSession::take_profile);
  m.def("tensor_to_torch", &tensor_to_torch, nb::arg("tensor"), "A torch.Tensor over the same memory.");
  m.def("tensor_from_torch", &tensor_from_torch, nb::arg("tensor"), "The memory of a torch.Tensor, kept alive.");
}
