#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "plan/lower.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// Numbers as numbers; None where nothing is known.
nb::object saving(const std::string& text) {
  if (text.empty()) return nb::none();
  const nb::str expression(text.c_str());
  const bool is_number = text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string::npos;
  return is_number ? nb::object(nb::int_(expression)) : nb::object(expression);
}

std::pair<std::string, Reports> simplified(std::string_view bytes, const std::vector<std::string>& names) {
  const onnx_io::ModelProto model = onnx_io::read_model(bytes, std::make_shared<int>());
  const std::unique_ptr<Graph> graph = import_as_written(model);
  PassManager passes({}, kEveryPass);
  passes.run(*graph, names);
  std::erase_if(graph->inputs, [&](const Value* v) { return graph->use_count(v) == 0; });
  ExportOptions how;
  how.opset = 1;
  how.with_types = false;
  return {onnx_io::write_model(export_graph(*graph, how)), passes.reports()};
}

}  // namespace

void bind_passes(nb::module_& m) {
  nb::class_<Report>(m, "Report", "One change that a rewriting pass made.")
      .def_ro("pass_name", &Report::pass)
      .def_ro("node", &Report::node, "label of the node it is about")
      .def_ro("what", &Report::what)
      .def_ro("why", &Report::why)
      .def_prop_ro(
          "operations_saved", [](const Report& r) { return saving(r.operations_saved); },
          nb::sig("def operations_saved(self) -> int | str | None"),
          "operations on elements in one run: a number, an expression over extents, or None where not known")
      .def_prop_ro(
          "bytes_saved", [](const Report& r) { return saving(r.bytes_saved); },
          nb::sig("def bytes_saved(self) -> int | str | None"), "bytes that one run need not write any more")
      .def("__repr__", &describe_fields);
  nb::class_<RowDensity>(m, "RowDensity", "How many rows of a batch a rewriting pass leaves.")
      .def_ro("pass_name", &RowDensity::pass)
      .def_ro("node", &RowDensity::node, "label of the node that finds them")
      .def_ro("input", &RowDensity::input, "of the model that says which")
      .def_ro("needed", &RowDensity::needed, "rows that something depends on")
      .def_ro("total", &RowDensity::total)
      .def_ro("ignored", &RowDensity::ignored, "the label that stands for none")
      .def_ro("per_sequence", &RowDensity::per_sequence, "of `needed`, where rows are tokens")
      .def_prop_ro("share", &RowDensity::share)
      .def("__repr__", &describe_fields);
  nb::class_<ChoiceReport>(m, "ChoiceReport", "What steps take with some of the passes that data decide on.")
      .def_ro("passes", &ChoiceReport::passes)
      .def_ro("runs", &ChoiceReport::runs, "batches it was chosen for")
      .def_ro("operations", &ChoiceReport::operations, "of its latest step; 0 where not known")
      .def_ro("bytes", &ChoiceReport::bytes, "of its arena")
      .def("__repr__", &describe_fields);
  nb::class_<DataReport>(m, "DataReport", "How a session decided by the data of its batches.")
      .def_ro("densities", &DataReport::densities, "of the latest batch")
      .def_ro("chosen", &DataReport::chosen, "passes, for it")
      .def_ro("choices", &DataReport::choices)
      .def_ro("build_seconds", &DataReport::build_seconds, "spent on the graphs so far")
      .def("__repr__", &describe_fields);
  nb::class_<PassTime>(m, "PassTime", "Time spent in one pass.")
      .def_ro("pass_name", &PassTime::pass)
      .def_ro("seconds", &PassTime::seconds)
      .def("__repr__", &describe_fields);
  m.def(
      "simplify",
      [](const nb::bytes& model, const std::vector<std::string>& passes) {
        std::pair<std::string, Reports> result;
        {
          const std::string_view bytes = view_of(model);
          const Unlocked unlocked;
          result = simplified(bytes, passes);
        }
        return nb::make_tuple(to_bytes(result.first), nb::cast(std::move(result.second)));
      },
      nb::arg("model"), nb::arg("passes"),
      nb::sig("def simplify(model: bytes, passes: Sequence[str]) -> tuple[bytes, list[Report]]"),
      "The model after these passes, still in its opset, without inputs and initializers that nothing reads; and what "
      "they did.");
}
