#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "backpass/session.hpp"
#include "bindings.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "support/printable.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

RuntimeValue to_value(nb::handle h) {
  if (h.is_none()) return {};
  if (nb::isinstance<nb::list>(h)) {
    std::vector<RuntimeValue> items;
    for (nb::handle item : nb::cast<nb::list>(h)) items.push_back(to_value(item));
    return RuntimeValue::sequence(std::move(items));
  }
  return nb::cast<Tensor>(h);
}

nb::object to_python(const RuntimeValue& v) {
  if (v.kind == RuntimeValue::Kind::tensor) return nb::cast(v.tensor);
  if (v.kind == RuntimeValue::Kind::none) return nb::none();
  nb::list items;
  for (const RuntimeValue& item : *v.items) items.append(to_python(item));
  return items;
}

Feeds to_feeds(const nb::dict& feeds) {
  Feeds result;
  for (auto [name, value] : feeds) {
    std::string text;
    if (!nb::try_cast(name, text)) throw nb::type_error("feeds: names are strings of valid characters");
    result.emplace_back(std::move(text), to_value(value));
  }
  return result;
}

nb::list run(const InferenceSession& session, const std::vector<std::string>& names, const nb::dict& feeds) {
  Feeds values = to_feeds(feeds);
  std::vector<RuntimeValue> results;
  {
    const Unlocked unlocked;
    results = session.run(names, values);
    values.clear();
  }
  nb::list out;
  for (const RuntimeValue& v : results) out.append(to_python(v));
  return out;
}

PlanReport plan(const InferenceSession& session, const nb::dict& feeds) {
  Feeds values = to_feeds(feeds);
  const Unlocked unlocked;
  PlanReport report = session.plan(values);
  values.clear();
  return report;
}

nb::bytes execution_model(const InferenceSession& session) {
  std::string model;
  {
    const Unlocked unlocked;
    model = session.execution_model();
  }
  return to_bytes(model);
}

std::unique_ptr<InferenceSession> from_bytes(nb::bytes bytes, const SessionOptions& options) {
  std::string_view view(bytes.c_str(), bytes.size());
  auto holder = std::make_shared<nb::bytes>(bytes);
  std::shared_ptr<const void> owner(holder.get(), [holder](const void*) mutable {
    nb::gil_scoped_acquire gil;
    holder.reset();
  });
  holder.reset();
  const Unlocked unlocked;
  return std::make_unique<InferenceSession>(view, std::move(owner), options);
}

std::unique_ptr<InferenceSession> from_path(const std::filesystem::path& path, const SessionOptions& options) {
  const Unlocked unlocked;
  return std::make_unique<InferenceSession>(path, options);
}

void bind_cancel(nb::module_& m) {
  nb::class_<CancelFlag>(m, "CancelFlag",
                         "Stops calls of the sessions that have it among their options: they raise Cancelled. Any "
                         "thread may set it; it stays set until it is cleared.")
      .def(nb::init<>())
      .def("set", &CancelFlag::set)
      .def("clear", &CancelFlag::clear)
      .def("is_set", &CancelFlag::is_set)
      .def("__repr__", [](const CancelFlag& f) { return f.is_set() ? "CancelFlag(set)" : "CancelFlag(clear)"; });
}

/// Name and value of everything that can be set.
nb::dict fields_of(nb::handle object) {
  nb::dict fields;
  for (nb::handle name : nb::cast<nb::list>(nb::module_::import_("builtins").attr("dir")(object))) {
    if (!nb::cast<std::string>(name).starts_with('_')) fields[name] = nb::getattr(object, name);
  }
  return fields;
}

void bind_options(nb::module_& m) {
  const SessionOptions d;
  nb::class_<SessionOptions>(m, "SessionOptions", "How a session runs; every default is automatic.")
      .def(
          "__init__",
          [](SessionOptions* self, int num_threads, bool optimize, bool reference, bool profile, int binding_cache,
             double time_limit, std::shared_ptr<CancelFlag> cancel, std::vector<std::string> disabled_passes,
             bool verify_passes, double max_memory, std::vector<std::string> recompute, double sparse_threshold) {
            new (self) SessionOptions{num_threads,
                                      optimize,
                                      reference,
                                      profile,
                                      binding_cache,
                                      time_limit,
                                      std::move(cancel),
                                      std::move(disabled_passes),
                                      verify_passes,
                                      max_memory,
                                      std::move(recompute),
                                      sparse_threshold};
          },
          nb::kw_only(), nb::arg("num_threads") = d.num_threads, nb::arg("optimize") = d.optimize,
          nb::arg("reference") = d.reference, nb::arg("profile") = d.profile,
          nb::arg("binding_cache") = d.binding_cache, nb::arg("time_limit") = d.time_limit,
          nb::arg("cancel") = nb::none(), nb::arg("disabled_passes") = d.disabled_passes,
          nb::arg("verify_passes") = d.verify_passes, nb::arg("max_memory") = d.max_memory,
          nb::arg("recompute") = d.recompute, nb::arg("sparse_threshold") = d.sparse_threshold)
      .def("__repr__", &describe_fields)
      .def(
          "__reduce__",
          [](nb::handle self) {
            nb::dict fields = fields_of(self);
            nb::del(fields["cancel"]);  // a flag belongs to its process
            return nb::make_tuple(self.type(), nb::tuple(), nb::make_tuple(nb::none(), fields));
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def_rw("num_threads", &SessionOptions::num_threads)
      .def_rw("optimize", &SessionOptions::optimize)
      .def_rw("reference", &SessionOptions::reference)
      .def_rw("profile", &SessionOptions::profile)
      .def_rw("binding_cache", &SessionOptions::binding_cache)
      .def_rw("time_limit", &SessionOptions::time_limit, "seconds that one call may take; 0: no limit")
      .def_rw("cancel", &SessionOptions::cancel, nb::arg().none(), "a CancelFlag that stops calls, or None")
      .def_rw("disabled_passes", &SessionOptions::disabled_passes, "names of rewriting passes that do not run")
      .def_rw("verify_passes", &SessionOptions::verify_passes, "look at every invariant of the graph after each pass")
      .def_rw("max_memory", &SessionOptions::max_memory,
              "bytes of intermediate values in training, or up to 1 a share of what they would take: what does not fit "
              "is made again by the backward pass; 0: no limit")
      .def_rw(
          "recompute", &SessionOptions::recompute,
          "what training computes again however much memory there is: 'cheap', 'blocks', or results of operators as "
          "'Gelu+Dropout:1:2'")
      .def_rw("sparse_threshold", &SessionOptions::sparse_threshold,
              "share of a batch's rows that are needed (have a label, are no padding) below which training leaves out "
              "the others; 0: never look");
}

void bind_memory(nb::module_& m) {
  nb::class_<ArenaNeed>(m, "ArenaNeed", "What intermediate values take.")
      .def_ro("expression", &ArenaNeed::expression, "bytes of values needed at once, by the model's symbols")
      .def_ro("unknown", &ArenaNeed::unknown, "values whose size the model does not say")
      .def_ro("bytes", &ArenaNeed::bytes, "for the sizes given, scratch memory of kernels included")
      .def("__repr__", &describe_fields);
  nb::class_<MemoryCheck>(m, "MemoryCheck", "What a model takes, before anything runs.")
      .def_ro("inference", &MemoryCheck::inference)
      .def_ro("training", &MemoryCheck::training)
      .def_ro("constant_bytes", &MemoryCheck::constant_bytes)
      .def_ro("gradient_bytes", &MemoryCheck::gradient_bytes)
      .def_ro("optimizer_bytes", &MemoryCheck::optimizer_bytes)
      .def("__repr__", &MemoryCheck::str);
  m.def(
      "check_memory_path",
      [](const std::filesystem::path& model, std::vector<std::string> trainable, Sizes sizes) {
        return check_memory(model, {std::move(trainable), std::move(sizes)});
      },
      nb::arg("path"), nb::arg("trainable"), nb::arg("sizes"), NoGil());
  m.def(
      "check_memory_bytes",
      [](const nb::bytes& b, std::vector<std::string> trainable, Sizes sizes) {
        const std::string_view model = view_of(b);
        const Unlocked unlocked;
        return check_memory(model, {std::move(trainable), std::move(sizes)});
      },
      nb::arg("model"), nb::arg("trainable"), nb::arg("sizes"));
}

void bind_reports(nb::module_& m) {
  nb::class_<ValueInfo>(m, "ValueInfo", "Name and type of an input or output.")
      .def_ro("name", &ValueInfo::name)
      .def_ro("type", &ValueInfo::type)
      .def_prop_ro("dtype", [](const ValueInfo& v) { return static_cast<int>(v.dtype); })
      .def_prop_ro(
          "extents", [](const ValueInfo& v) { return v.has_shape ? std::optional(v.shape) : std::nullopt; },
          "numbers, or names for what may vary; None when the rank is not known")
      .def("__repr__", &describe_fields);
  nb::class_<StepRecord>(m, "StepRecord", "One executed step.")
      .def_ro("name", &StepRecord::name)
      .def_ro("op", &StepRecord::op)
      .def_ro("shapes", &StepRecord::shapes)
      .def_ro("start_us", &StepRecord::start_us)
      .def_ro("duration_us", &StepRecord::duration_us)
      .def_ro("bytes", &StepRecord::bytes, "What it has to read and write at least.")
      .def_ro("flops", &StepRecord::flops, "Of products, convolutions, attention and recurrent layers; 0 for others.")
      .def_ro("threads", &StepRecord::threads, "That it may have used.")
      .def("__repr__", &describe_fields);
  nb::class_<PlannedBuffer>(m, "PlannedBuffer", "A value that lies in the arena while steps first to last run.")
      .def_ro("name", &PlannedBuffer::name)
      .def_ro("type", &PlannedBuffer::type)
      .def_ro("bytes", &PlannedBuffer::bytes)
      .def_ro("offset", &PlannedBuffer::offset)
      .def_ro("first", &PlannedBuffer::first)
      .def_ro("last", &PlannedBuffer::last);
  nb::class_<HeldBytes>(m, "HeldBytes", "What a training session holds from step to step, beside the arena.")
      .def_ro("parameters", &HeldBytes::parameters)
      .def_ro("gradients", &HeldBytes::gradients)
      .def_ro("optimizer_state", &HeldBytes::optimizer_state);
  nb::class_<PlanReport>(m, "PlanReport", "What planning decided for one set of input extents.")
      .def_ro("peak_bytes", &PlanReport::peak_bytes)
      .def_ro("lower_bound_bytes", &PlanReport::lower_bound_bytes)
      .def_ro("constant_bytes", &PlanReport::constant_bytes)
      .def_ro("steps", &PlanReport::steps)
      .def_ro("views", &PlanReport::views)
      .def_ro("in_place", &PlanReport::in_place)
      .def_ro("late_steps", &PlanReport::late_steps)
      .def_ro("buffers", &PlanReport::buffers)
      .def_ro("live_bytes", &PlanReport::live_bytes, "Of buffers, while each step runs.")
      .def_ro("held", &PlanReport::held, "Bytes of a training session; 0 elsewhere.")
      .def("svg", &PlanReport::svg, "A picture: steps to the right, places in the arena upwards.")
      .def("_repr_svg_", &PlanReport::svg)
      .def("__repr__", [](const PlanReport& r) { return r.text; })
      .def(
          "_repr_html_",
          [](const PlanReport& r) { return nb::module_::import_("backpass._html").attr("text")(r.text); },
          nb::sig("def _repr_html_(self) -> str"));
  nb::class_<Problem>(m, "Problem", "One thing wrong with a model.")
      .def_prop_ro("kind",
                   [](const Problem& p) { return p.kind == Problem::Kind::invalid ? "invalid" : "unsupported"; })
      .def_ro("node", &Problem::node)
      .def_ro("op", &Problem::op)
      .def_prop_ro("text", [](const Problem& p) { return readable(p.text); })
      .def("__repr__", [](const Problem& p) { return readable(p.text); });
}

}  // namespace

std::string describe_fields(nb::handle object) {
  std::string text;
  for (auto [name, value] : fields_of(object)) {
    text += concat(text.empty() ? "" : ", ", nb::cast<std::string>(name), "=", nb::repr(value).c_str());
  }
  return concat(nb::cast<std::string>(object.type().attr("__name__")), "(", text, ")");
}

void bind_session(nb::module_& m) {
  bind_cancel(m);
  bind_options(m);
  bind_reports(m);
  bind_memory(m);
  nb::class_<InferenceSession>(m, "Session", "A loaded model.")
      .def_static("from_path", &from_path, nb::arg("path"), nb::arg("options"))
      .def_static("from_bytes", &from_bytes, nb::arg("model"), nb::arg("options"))
      .def("inputs", &InferenceSession::inputs)
      .def("outputs", &InferenceSession::outputs)
      .def("run", &run, nb::arg("names"), nb::arg("feeds"))
      .def("plan", &plan, nb::arg("feeds"))
      .def("arena_need", &InferenceSession::arena_need, nb::arg("sizes"), NoGil())
      .def("rewrites", &InferenceSession::rewrites)
      .def("pass_reports", &InferenceSession::pass_reports)
      .def("pass_times", &InferenceSession::pass_times)
      .def("graph_text", [](const InferenceSession& s) { return readable(s.graph_text()); })
      .def("execution_model", &execution_model,
           "The model after rewriting, before it is laid out for running: an ONNX model, which a session can load.")
      .def("take_profile", &InferenceSession::take_profile);
  m.def(
      "model_bytes",
      [](const std::filesystem::path& p) { return to_bytes(onnx_io::write_model(onnx_io::read_model(p))); },
      nb::arg("path"), "A model and its weights, wherever they lie, in one piece.");
  m.def(
      "check_path", [](const std::filesystem::path& p) { return check(p); }, nb::arg("path"), NoGil());
  m.def(
      "check_bytes",
      [](const nb::bytes& b) {
        const std::string_view model = view_of(b);
        const Unlocked unlocked;
        return check(model);
      },
      nb::arg("model"));
}
