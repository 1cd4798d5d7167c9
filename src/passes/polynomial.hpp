// Arithmetic that is written out, as a polynomial: however its factors are ordered and its terms are grouped, it is the
// same.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>

#include "graph/halves.hpp"

namespace backpass {

/// Coefficients, by the exponents of two variables.
using Polynomial = std::map<std::array<int, 2>, double>;

/// The value as a polynomial of up to two others, with numbers as coefficients: sums, differences, products, quotients
/// by numbers, powers. Nodes in between are added to `nodes`. None where anything else has a part in it.
std::optional<Polynomial> polynomial_of(Value* v, std::span<const Value* const> variables, NodeSet& nodes);

/// Coefficients differ by at most this part of `expected`.
bool is_near(const Polynomial& found, const Polynomial& expected, double part);

/// What a value may be a polynomial of: itself, and everything that arithmetic makes it of.
std::vector<Value*> possible_variables(Value* v);

}  // namespace backpass
