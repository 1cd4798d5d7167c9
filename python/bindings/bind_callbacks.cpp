// Nodes that PyTorch runs: the engine's callback is backpass.torch.callbacks, imported when the first such node is run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "ops/custom/callback.hpp"
#include "runtime/unshare.hpp"
#include "torch_exchange.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// The object is released under the interpreter lock, by whatever thread; not at all once the interpreter is gone.
std::shared_ptr<void> keep(nb::object object) {
  return {object.release().ptr(), [](void* p) {
            if (Py_IsInitialized() == 0) return;
            nb::gil_scoped_acquire gil;
            nb::handle(static_cast<PyObject*>(p)).dec_ref();
          }};
}

nb::list read_tensors(const ComputeContext& c, std::size_t first, std::size_t end) {
  const bool may_keep = runs_foreign_code(c.node);
  nb::list tensors;
  for (std::size_t i = first; i < end; ++i) {
    if (c.has_input(i)) {
      tensors.append(tensor_to_torch(may_keep ? owned(c.tensor(i)) : c.tensor(i)));
    } else {
      tensors.append(nb::none());
    }
  }
  return tensors;
}

/// Tensors whose memory the engine will use for something else after the call.
nb::list find_borrowed(const ComputeContext& c, std::size_t end) {
  const bool may_keep = runs_foreign_code(c.node);
  nb::list flags;
  for (std::size_t i = 0; i < end; ++i) flags.append(!may_keep && c.has_input(i) && c.tensor(i).owner() == nullptr);
  return flags;
}

void write_tensors(ComputeContext& c, const nb::list& results, std::size_t count) {
  if (results.size() != count) c.fail("number of results: got ", results.size(), " tensors, expected ", count);
  for (std::size_t k = 0; k < count; ++k) {
    if (c.has_output(k) && !results[k].is_none()) c.outputs[k] = tensor_from_torch(results[k]);
  }
}

nb::list flags_of(const std::vector<std::int64_t>& values) {
  nb::list flags;
  for (std::int64_t v : values) flags.append(v != 0);
  return flags;
}

std::string target_of(const Node& node) {
  if (node.domain == "com.microsoft") return node.attr_string("func_name");
  std::string overload = node.attr_string("overload_name", "");
  return node.attr_string("operator") + (overload.empty() ? "" : "." + overload);
}

void run_forward(ComputeContext& c, const nb::object& torch, std::size_t tensors, std::size_t results) {
  const Node& node = c.node;
  nb::object needs = nb::none();
  if (node.output(results) != nullptr) needs = flags_of(node.attr_ints("input_requires_grads"));
  nb::object answer = torch.attr("forward")(node.op, node.name, target_of(node), node.attr_string("arguments", "{}"),
                                            read_tensors(c, 0, tensors), find_borrowed(c, tensors), needs);
  write_tensors(c, nb::cast<nb::list>(answer[0]), results);
  if (node.output(results) != nullptr) c.outputs[results] = make_context(keep(answer[1]));
}

void run_backward(ComputeContext& c, const nb::object& torch, std::size_t tensors, std::size_t results) {
  const Node& node = c.node;
  const std::shared_ptr<void> state = state_of(c.tensor(0));
  nb::list wanted;
  for (std::size_t k = 0; k < results; ++k) wanted.append(c.has_output(k));
  nb::object answer =
      torch.attr("backward")(node.op, node.name, target_of(node), nb::borrow(static_cast<PyObject*>(state.get())),
                             read_tensors(c, 1, tensors), wanted);
  write_tensors(c, nb::cast<nb::list>(answer), results);
}

void run(ComputeContext& c) {
  nb::gil_scoped_acquire gil;
  const auto tensors = static_cast<std::size_t>(c.node.attr_int("tensor_inputs"));
  const std::size_t results = c.node.attr_ints("output_types").size();
  nb::object torch = nb::module_::import_("backpass.torch.callbacks");
  const bool is_forward = c.node.op == "PythonOp" || c.node.op == "ATen";
  is_forward ? run_forward(c, torch, tensors, results) : run_backward(c, torch, tensors, results);
}

}  // namespace

void bind_callbacks(nb::module_&) { set_torch_callback(run); }
