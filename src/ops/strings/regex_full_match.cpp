// RegexFullMatch: which strings a regular expression (RE2 syntax) matches as a whole.
#include <string>

#include "graph/op.hpp"
#include "ops/strings/regex.hpp"

namespace backpass {
namespace {

Regex compiled(const Node& node) {
  const std::string pattern = node.attr_string("pattern");
  try {
    return Regex(pattern);
  } catch (const InvalidInput& e) {
    fail(node.label(), " attribute 'pattern': ", e.what());
  } catch (const Unsupported& e) {
    fail<Unsupported>(node.label(), " attribute 'pattern': ", e.what());
  }
}

void infer(InferContext& c) {
  c.set_dtype(0, DType::boolean);
  compiled(c.node);
  c.set_shape(0, c.shape(0));
}

void compute(ComputeContext& c) {
  const Tensor& x = c.tensor(0);
  const Regex regex = compiled(c.node);
  Tensor y(DType::boolean, x.dims());
  for (std::int64_t i = 0; i < x.size(); ++i) y.as<bool>()[i] = regex.matches_all(x.as<std::string>()[i]);
  c.outputs[0] = std::move(y);
}

const Register regex_full_match{{.name = "RegexFullMatch",
                                 .since = 20,
                                 .doc = "Which strings a regular expression (RE2 syntax) matches as a whole.",
                                 .inputs = {1, 1},
                                 .types = types::strings,
                                 .infer = infer,
                                 .compute = compute}};

}  // namespace
}  // namespace backpass
