#include "passes/polynomial.hpp"

#include <algorithm>
#include <cmath>

#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;

constexpr int kMostNodes = 8;   ///< from the result to a variable
constexpr int kMostDegree = 4;  ///< more than any operator's

std::optional<Polynomial> sum(const Polynomial& a, const Polynomial& b, double sign) {
  Polynomial result = a;
  for (const auto& [exponents, coefficient] : b) result[exponents] += sign * coefficient;
  return result;
}

std::optional<Polynomial> product(const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [left, x] : a) {
    for (const auto& [right, y] : b) {
      const std::array<int, 2> exponents{left[0] + right[0], left[1] + right[1]};
      if (exponents[0] + exponents[1] > kMostDegree) return std::nullopt;
      result[exponents] += x * y;
    }
  }
  return result;
}

std::optional<double> number_in(const Polynomial& p) {
  if (p.size() != 1 || p.begin()->first != std::array{0, 0}) return std::nullopt;
  return p.begin()->second;
}

std::optional<Polynomial> quotient(const Polynomial& a, const Polynomial& b) {
  const std::optional<double> by = number_in(b);
  if (!by || *by == 0) return std::nullopt;
  return product(a, {{{0, 0}, 1 / *by}});
}

std::optional<Polynomial> power(const Polynomial& base, const Polynomial& exponent) {
  const std::optional<double> times = number_in(exponent);
  if (!times || *times < 1 || *times > kMostDegree || *times != std::floor(*times)) return std::nullopt;
  std::optional<Polynomial> result = base;
  for (int i = 1; result && i < static_cast<int>(*times); ++i) result = product(*result, base);
  return result;
}

std::size_t operand_count(const Node* node) {
  if (is_op(node, "Neg")) return 1;
  for (const char* op : {"Mul", "Add", "Sub", "Div", "Pow"}) {
    if (is_op(node, op)) return 2;
  }
  return 0;
}

class Reader {
 public:
  Reader(std::span<const Value* const> variables, NodeSet& nodes) : variables_(variables), nodes_(nodes) {}

  std::optional<Polynomial> read(Value* v, int depth) {
    for (; !is_variable(v) && pattern::is_identity(v->producer); v = v->producer->input(0)) nodes_.insert(v->producer);
    const auto variable = std::find(variables_.begin(), variables_.end(), v);
    if (variable != variables_.end()) {
      return variable == variables_.begin() ? Polynomial{{{1, 0}, 1}} : Polynomial{{{0, 1}, 1}};
    }
    if (const std::optional<double> number = pattern::number_of(v)) return Polynomial{{{0, 0}, *number}};
    const std::size_t count = depth > 0 ? operand_count(v->producer) : 0;
    if (count == 0) return std::nullopt;
    nodes_.insert(v->producer);
    const std::optional<Polynomial> a = read(v->producer->input(0), depth - 1);
    if (!a || count == 1) return a ? sum({}, *a, -1) : a;
    const std::optional<Polynomial> b = read(v->producer->input(1), depth - 1);
    return b ? joined(v->producer->op, *a, *b) : std::nullopt;
  }

 private:
  bool is_variable(const Value* v) const {
    return std::find(variables_.begin(), variables_.end(), v) != variables_.end();
  }

  static std::optional<Polynomial> joined(std::string_view op, const Polynomial& a, const Polynomial& b) {
    if (op == "Mul") return product(a, b);
    if (op == "Div") return quotient(a, b);
    if (op == "Pow") return power(a, b);
    return sum(a, b, op == "Add" ? 1 : -1);
  }

  std::span<const Value* const> variables_;
  NodeSet& nodes_;
};

void collect(Value* v, int depth, std::vector<Value*>& found) {
  v = pattern::source_of(v);
  if (v->constant || std::find(found.begin(), found.end(), v) != found.end()) return;
  found.push_back(v);
  const std::size_t count = depth > 0 ? operand_count(v->producer) : 0;
  for (std::size_t i = 0; i < count; ++i) collect(v->producer->input(i), depth - 1, found);
}

}  // namespace

std::optional<Polynomial> polynomial_of(Value* v, std::span<const Value* const> variables, NodeSet& nodes) {
  return Reader(variables, nodes).read(v, kMostNodes);
}

bool is_near(const Polynomial& found, const Polynomial& expected, double part) {
  return found.size() == expected.size() && std::all_of(expected.begin(), expected.end(), [&](const auto& term) {
           const auto it = found.find(term.first);
           return it != found.end() && std::abs(it->second - term.second) <= part * std::abs(term.second);
         });
}

std::vector<Value*> possible_variables(Value* v) {
  std::vector<Value*> found;
  collect(v, kMostNodes, found);
  return found;
}

}  // namespace backpass
