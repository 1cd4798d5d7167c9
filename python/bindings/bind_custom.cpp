// Operators and gradients written in Python. What is registered with the engine is a number: the functions themselves
// stay in backpass.custom, so that they go when the interpreter does.
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backpass/custom_operator.hpp"
#include "bindings.hpp"
#include "runtime/unshare.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// A rule under way; afterwards, what it gave out means nothing.
struct Rule {
  GradientGraph* graph = nullptr;
};

struct GraphValue {
  std::shared_ptr<Rule> rule;
  Value* value = nullptr;
};

GradientGraph& graph_of(const Rule& rule) {
  if (rule.graph == nullptr) fail("gradient rule: got a use of it after it had ended; its values are valid inside it");
  return *rule.graph;
}

nb::object extent_to_python(const Extent& e) { return e.is_known() ? nb::object(nb::int_(e.value())) : nb::cast(e); }

Extent extent_from_python(nb::handle h) {
  return nb::isinstance<Extent>(h) ? nb::cast<Extent>(h) : Extent(nb::cast<std::int64_t>(h));
}

/// (ONNX code of the element type, extents or None); None where nothing is known.
nb::object type_to_python(const TensorType& type) {
  if (type.dtype == DType::undefined) return nb::none();
  nb::object shape = nb::none();
  if (type.shape) {
    nb::list extents;
    for (const Extent& e : *type.shape) extents.append(extent_to_python(e));
    shape = nb::tuple(extents);
  }
  return nb::make_tuple(static_cast<int>(type.dtype), shape);
}

TensorType type_from_python(nb::handle h) {
  if (h.is_none()) return {};
  const int code = nb::cast<int>(h[0]);
  if (!is_known_dtype(code)) fail("element type code: got ", code, ", expected one of ONNX's");
  TensorType type{static_cast<DType>(code), std::nullopt};
  nb::object shape = h[1];
  if (shape.is_none()) return type;
  type.shape.emplace();
  for (nb::handle e : shape) type.shape->push_back(extent_from_python(e));
  return type;
}

nb::dict attributes_to_python(const Attributes& attributes) {
  nb::dict found;
  for (const auto& [name, value] : attributes) {
    std::visit([&, &key = name](const auto& v) { found[nb::str(key.c_str())] = nb::cast(v); }, value);
  }
  return found;
}

AttributeValue attribute_from_python(nb::handle h) {
  if (nb::isinstance<Tensor>(h)) return nb::cast<Tensor>(h);
  if (nb::isinstance<nb::int_>(h)) return nb::cast<std::int64_t>(h);
  if (nb::isinstance<nb::float_>(h)) return nb::cast<float>(h);
  if (nb::isinstance<nb::str>(h)) return nb::cast<std::string>(h);
  auto items = nb::cast<nb::list>(h);
  if (items.size() > 0 && nb::isinstance<nb::str>(items[0])) return nb::cast<std::vector<std::string>>(h);
  if (items.size() > 0 && nb::isinstance<nb::float_>(items[0])) return nb::cast<std::vector<float>>(h);
  return nb::cast<std::vector<std::int64_t>>(h);
}

/// A function may keep what it is given.
nb::list tensors_to_python(std::span<const Tensor> tensors) {
  nb::list list;
  for (const Tensor& t : tensors) list.append(t.dtype() == DType::undefined ? nb::none() : nb::cast(owned(t)));
  return list;
}

std::vector<Tensor> tensors_from_python(const nb::object& results) {
  std::vector<Tensor> tensors;
  for (nb::handle h : results) tensors.push_back(h.is_none() ? Tensor() : nb::cast<Tensor>(h));
  return tensors;
}

nb::list outputs_of(const OperatorCall& call) {
  nb::list wanted;
  for (std::size_t k = 0; k < call.output_count(); ++k) wanted.append(call.has_output(k));
  return wanted;
}

/// Calls a function of backpass.custom. What it refuses in the engine's own terms becomes the engine's error.
template <class... Args>
nb::object ask(const char* function, int number, const OperatorCall& call, Args&&... args) {
  nb::module_ core = nb::module_::import_("backpass._core");
  try {
    return nb::module_::import_("backpass.custom")
        .attr(function)(number, call.label(), attributes_to_python(call.attributes()), std::forward<Args>(args)...);
  } catch (nb::python_error& e) {
    if (e.matches(core.attr("InvalidInput"))) fail(nb::str(e.value()).c_str());
    if (e.matches(core.attr("Unsupported"))) fail<Unsupported>(nb::str(e.value()).c_str());
    throw;
  }
}

TypeRule type_rule(int number) {
  return [number](const OperatorCall& call, std::span<const TensorType> inputs) {
    nb::gil_scoped_acquire gil;
    nb::list types;
    for (const TensorType& t : inputs) types.append(type_to_python(t));
    std::vector<TensorType> answer;
    for (nb::handle h : ask("call_types", number, call, types)) answer.push_back(type_from_python(h));
    return answer;
  };
}

ForwardFunction forward_function(int number) {
  return [number](const OperatorCall& call, std::span<const Tensor> inputs) {
    nb::gil_scoped_acquire gil;
    return tensors_from_python(ask("call_forward", number, call, tensors_to_python(inputs), outputs_of(call)));
  };
}

BackwardFunction backward_function(int number) {
  return [number](const OperatorCall& call, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                  std::span<const Tensor> gradients) {
    nb::gil_scoped_acquire gil;
    return tensors_from_python(ask("call_backward", number, call, tensors_to_python(inputs), tensors_to_python(outputs),
                                   tensors_to_python(gradients)));
  };
}

GradientRule gradient_rule(int number) {
  return [number](GradientGraph& graph) {
    nb::gil_scoped_acquire gil;
    auto rule = std::make_shared<Rule>(Rule{&graph});
    struct End {
      Rule& rule;
      ~End() { rule.graph = nullptr; }
    } end{*rule};
    ask("call_gradient", number, graph.call(), nb::cast(GraphValue{rule, nullptr}));
  };
}

void add_operator(const std::string& domain, const std::string& name, int number, int since, std::pair<int, int> inputs,
                  std::pair<int, int> outputs, bool has_types, bool is_pure, bool replace) {
  CustomOperator op;
  op.name = name;
  op.domain = domain;
  op.since = since;
  op.inputs = {inputs.first, inputs.second};
  op.outputs = {outputs.first, outputs.second};
  if (has_types) op.types = type_rule(number);
  op.forward = forward_function(number);
  op.is_pure = is_pure;
  op.replace = replace;
  register_operator(std::move(op));
}

void add_gradient(const std::string& domain, const std::string& name, int number, bool by_numbers, bool replace) {
  CustomGradient gradient;
  gradient.name = name;
  gradient.domain = domain;
  if (by_numbers) {
    gradient.backward = backward_function(number);
  } else {
    gradient.gradient = gradient_rule(number);
  }
  gradient.replace = replace;
  register_gradient(std::move(gradient));
}

Value* value_of(const GraphValue& self, nb::handle h) {
  if (h.is_none()) return nullptr;
  const auto& v = nb::cast<const GraphValue&>(h);
  if (v.rule != self.rule) fail("gradient rule: got a value of another rule");
  return v.value;
}

std::vector<GraphValue> add_nodes(const GraphValue& self, const std::string& op, const nb::list& inputs,
                                  const nb::dict& attributes, const std::string& domain, std::size_t outputs) {
  std::vector<Value*> reads;
  for (nb::handle h : inputs) reads.push_back(value_of(self, h));
  Attributes given;
  for (auto [name, value] : attributes) given.emplace(nb::cast<std::string>(name), attribute_from_python(value));
  std::vector<GraphValue> results;
  for (Value* v : graph_of(*self.rule).ops(op, reads, outputs, given, domain)) results.push_back({self.rule, v});
  return results;
}

void bind_rule(nb::module_& m) {
  auto value = [](const GraphValue& self, Value* v) { return GraphValue{self.rule, v}; };
  nb::class_<GraphValue>(m, "GraphValue", "A value of the graph in which a gradient rule writes; valid inside it.")
      .def("input_count", [](const GraphValue& g) { return graph_of(*g.rule).call().input_count(); })
      .def("output_count", [](const GraphValue& g) { return graph_of(*g.rule).call().output_count(); })
      .def("has_input", [](const GraphValue& g, std::size_t i) { return graph_of(*g.rule).call().has_input(i); })
      .def("has_output", [](const GraphValue& g, std::size_t k) { return graph_of(*g.rule).call().has_output(k); })
      .def("x", [=](const GraphValue& g, std::size_t i) { return value(g, graph_of(*g.rule).x(i)); })
      .def("y", [=](const GraphValue& g, std::size_t k) { return value(g, graph_of(*g.rule).y(k)); })
      .def("has_dy", [](const GraphValue& g, std::size_t k) { return graph_of(*g.rule).has_dy(k); })
      .def("dy", [=](const GraphValue& g, std::size_t k) { return value(g, graph_of(*g.rule).dy(k)); })
      .def("wants", [](const GraphValue& g, std::size_t i) { return graph_of(*g.rule).wants(i); })
      .def(
          "set",
          [](const GraphValue& g, std::size_t i, const nb::object& v) { graph_of(*g.rule).set(i, value_of(g, v)); },
          nb::arg("i"), nb::arg("gradient").none())
      .def("nodes", &add_nodes, nb::arg("op"), nb::arg("inputs"), nb::arg("attributes"), nb::arg("domain"),
           nb::arg("outputs"))
      .def("constant", [=](const GraphValue& g, const Tensor& t) { return value(g, graph_of(*g.rule).constant(t)); })
      .def(
          "number",
          [=](const GraphValue& g, double v, const nb::object& like) {
            return value(g, graph_of(*g.rule).number(v, value_of(g, like)));
          },
          nb::arg("value"), nb::arg("like").none())
      .def("like",
           [=](const GraphValue& g, const std::string& how, const nb::object& a, const nb::object& like) {
             GradientGraph& graph = graph_of(*g.rule);
             Value* v = value_of(g, a);
             Value* other = value_of(g, like);
             if (how == "cast") return value(g, graph.cast_like(v, other));
             if (how == "reshape") return value(g, graph.reshape_like(v, other));
             if (how == "expand") return value(g, graph.expand_like(v, other));
             return value(g, graph.reduce_like(v, other));
           })
      .def("shape", [=](const GraphValue& g) { return value(g, graph_of(*g.rule).shape_of(g.value)); })
      .def("zeros", [=](const GraphValue& g) { return value(g, graph_of(*g.rule).zeros_like(g.value)); })
      .def("type", [](const GraphValue& g) { return type_to_python(graph_of(*g.rule).type_of(g.value)); });
}

}  // namespace

void bind_custom(nb::module_& m) {
  nb::class_<Extent>(m, "Extent", "An extent that is not known before running: an expression of names.")
      .def("__str__", &Extent::str)
      .def("__repr__", &Extent::str)
      .def("__add__", [](const Extent& a, const nb::object& b) { return a + extent_from_python(b); })
      .def("__radd__", [](const Extent& a, const nb::object& b) { return extent_from_python(b) + a; })
      .def("__sub__", [](const Extent& a, const nb::object& b) { return a - extent_from_python(b); })
      .def("__rsub__", [](const Extent& a, const nb::object& b) { return extent_from_python(b) - a; })
      .def("__mul__", [](const Extent& a, const nb::object& b) { return a * extent_from_python(b); })
      .def("__rmul__", [](const Extent& a, const nb::object& b) { return extent_from_python(b) * a; })
      .def("__floordiv__", [](const Extent& a, const nb::object& b) { return floor_div(a, extent_from_python(b)); })
      .def("__rfloordiv__", [](const Extent& a, const nb::object& b) { return floor_div(extent_from_python(b), a); })
      .def(
          "__eq__",
          [](const Extent& a, const nb::object& b) {
            return (nb::isinstance<Extent>(b) || nb::isinstance<nb::int_>(b)) && a == extent_from_python(b);
          },
          nb::sig("def __eq__(self, arg: object, /) -> bool"), nb::arg().none())
      .def("__hash__", [](const Extent& a) { return std::hash<std::string>()(a.str()); });
  bind_rule(m);
  m.def("register_operator", &add_operator, nb::arg("domain"), nb::arg("name"), nb::arg("number"), nb::arg("since"),
        nb::arg("inputs"), nb::arg("outputs"), nb::arg("has_types"), nb::arg("is_pure"), nb::arg("replace"));
  m.def("register_gradient", &add_gradient, nb::arg("domain"), nb::arg("name"), nb::arg("number"),
        nb::arg("by_numbers"), nb::arg("replace"));
  m.def(
      "unregister", [](const std::string& domain, const std::string& name) { unregister(domain, name); },
      nb::arg("domain"), nb::arg("name"));
}
