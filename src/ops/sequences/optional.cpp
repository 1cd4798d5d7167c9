// Optional, OptionalGetElement, OptionalHasElement. A full optional is its
// content, an empty one is nothing at all.
#include <array>
#include <utility>
#include <variant>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/slices.hpp"

namespace backpass {
namespace {

/// The gradient of an optional is that of what it holds.
void passed_on(GradientContext& g) { g.set(0, g.dy()); }

void infer_optional(InferContext& c) {
  if (c.has_input(0)) {
    const Type& type = c.type(0);
    return c.set_type(0, type.kind == Type::Kind::optional ? type : Type::optional(type));
  }
  auto attribute = c.node.attributes.find("type");
  const Type* type = attribute == c.node.attributes.end() ? nullptr : std::get_if<Type>(&attribute->second);
  c.require(type != nullptr, "attribute 'type': missing, expected the type of the empty optional");
  c.set_type(0, Type::optional(*type));
}

void make_optional(ComputeContext& c) {
  if (c.has_input(0)) c.outputs[0] = owned(c.inputs[0]);
}

const Register optional{{.name = "Optional",
                         .since = 28,
                         .doc = "An optional holding its input, or an empty one.",
                         .inputs = {0, 1},
                         .types = {},
                         .infer = infer_optional,
                         .compute = make_optional,
                         .gradient = passed_on}};

void infer_get_element(InferContext& c) {
  const Type& type = c.type(0);
  c.set_type(0, type.kind == Type::Kind::optional ? *type.element : type);
}

void get_element(ComputeContext& c) {
  c.require(c.has_input(0),
            "input: got an empty optional, expected one with "
            "an element; test it with OptionalHasElement");
  c.outputs[0] = owned(c.inputs[0]);
}

const Register optional_get_element{{.name = "OptionalGetElement",
                                     .since = 28,
                                     .doc = "What an optional holds.",
                                     .inputs = {1, 1},
                                     .types = {},
                                     .infer = infer_get_element,
                                     .compute = get_element,
                                     .gradient = passed_on}};

void has_element(ComputeContext& c) {
  c.outputs[0] = Tensor::from<bool>(DType::boolean, {}, std::array<bool, 1>{c.has_input(0)});
}

const Register optional_has_element{{.name = "OptionalHasElement",
                                     .since = 28,
                                     .doc = "Whether an optional holds something.",
                                     .inputs = {0, 1},
                                     .types = {},
                                     .infer = [](InferContext& c) { c.set(0, DType::boolean, {}); },
                                     .compute = has_element}};

}  // namespace
}  // namespace backpass
