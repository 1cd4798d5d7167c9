#include <limits>

#include "graph/op.hpp"
#include "passes/list.hpp"
#include "passes/pattern.hpp"
#include "passes/polynomial.hpp"

namespace backpass {
namespace {

using namespace pattern;

constexpr double kRootOfHalf = 0.70710678118654752;     ///< sqrt(1 / 2)
constexpr double kRootOfTwoByPi = 0.79788456080286536;  ///< sqrt(2 / pi)
constexpr double kCubic = 0.044715;
constexpr float kQuick = 1.702F;

/// A function of x by way of e, which is another function of a polynomial of x.
struct Form {
  std::string_view inner;
  Polynomial argument;
  Polynomial result;  ///< of x and e
  std::string_view domain;
  std::string_view op;
  std::pair<std::string, Attribute> attribute;
};

const std::vector<Form>& forms() {
  const Polynomial halves{{{1, 0}, 0.5}, {{1, 1}, 0.5}};  // x (1 + e) / 2
  const Polynomial gated{{{1, 1}, 1}};                    // x e
  const auto cubic = [](double a) { return Polynomial{{{1, 0}, a}, {{3, 0}, a * kCubic}}; };
  using Text = std::string;
  static const std::vector<Form> kForms{
      {"Erf", {{{1, 0}, kRootOfHalf}}, halves, "", "Gelu", {"approximate", Text("none")}},
      {"Tanh", cubic(kRootOfTwoByPi), halves, "", "Gelu", {"approximate", Text("tanh")}},
      {"Sigmoid", cubic(2 * kRootOfTwoByPi), gated, "", "Gelu", {"approximate", Text("tanh")}},
      {"Sigmoid", {{{1, 0}, kQuick}}, gated, "com.microsoft", "QuickGelu", {"alpha", kQuick}}};
  return kForms;
}

/// How far numbers may be off that were rounded to this type, once or twice.
double rounding_of(DType dtype) {
  constexpr double kHalf = 0x1p-10;
  constexpr double kBrain = 0x1p-7;
  if (dtype == DType::float16) return 2 * kHalf;
  if (dtype == DType::bfloat16) return 2 * kBrain;
  return 2 * (dtype == DType::float64 ? std::numeric_limits<double>::epsilon()
                                      : static_cast<double>(std::numeric_limits<float>::epsilon()));
}

struct Found {
  Value* x;
  Node* result;
  NodeSet nodes;
};

/// The node behind e that gives all of the form; nobody else may read what lies between.
Node* result_of(const Graph& graph, const Form& form, const Value* x, const Value* e, NodeSet& nodes) {
  constexpr int kMostSteps = 5;
  const Value* at = e;
  for (int i = 0; i < kMostSteps; ++i) {
    Node* reader = graph.only_reader(at);
    if (reader == nullptr || reader->outputs.size() != 1) return nullptr;
    NodeSet tried;
    const Value* const variables[] = {x, e};
    const auto polynomial = polynomial_of(reader->output(0), variables, tried);
    if (!polynomial) return nullptr;
    if (is_near(*polynomial, form.result, rounding_of(x->type.dtype))) {
      nodes.insert(tried.begin(), tried.end());
      return has_same_type(x, reader->output(0)) ? reader : nullptr;
    }
    at = reader->output(0);
  }
  return nullptr;
}

std::optional<Found> find(const Graph& graph, const Form& form, Node& inner) {
  for (Value* x : possible_variables(inner.input(0))) {
    Found found{x, nullptr, {&inner}};
    const Value* const variables[] = {x};
    const auto argument = polynomial_of(inner.input(0), variables, found.nodes);
    if (!argument || !is_near(*argument, form.argument, rounding_of(x->type.dtype))) continue;
    found.result = result_of(graph, form, x, inner.output(0), found.nodes);
    if (found.result != nullptr) return found;
  }
  return std::nullopt;
}

bool recognise(Graph& graph, const Form& form, Node& inner, Reports& reports) {
  const std::optional<Found> found =
      is_op(&inner, form.inner) && inner.input(0) != nullptr ? find(graph, form, inner) : std::nullopt;
  if (!found) return false;
  const std::vector<Value*> saved = inner_values(graph, found->nodes);
  reports.push_back({.node = found->result->label(),
                     .what = concat("recognised ", form.op, " in ", inner.label(), " and ", found->nodes.size() - 1,
                                    " nodes around it"),
                     .why = "one operator computes it, and another its gradient from x alone",
                     .bytes_saved = bytes_of(saved)});
  found->result->attributes.clear();
  graph.rewrite(*found->result, form.domain, form.op, {found->x});
  found->result->attributes.insert(form.attribute);
  return true;
}

}  // namespace

void recognise_gelu(Graph& graph, Reports& reports) {
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    for (const Form& form : forms()) changed = recognise(graph, form, *node, reports) || changed;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
