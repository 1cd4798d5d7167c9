// How expressions over extents are kept: polynomials over atoms. Only dim.cpp and its neighbours read this.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/dim.hpp"

namespace backpass {

/// A symbol, or a function of extents that is no polynomial.
struct Atom {
  enum class Kind : std::uint8_t { symbol, floor_quotient, truncated_quotient, smallest, largest, broadcast, or_else };
  Kind kind = Kind::symbol;
  std::string text;
  std::vector<Dim> operands;
};

using AtomRef = std::shared_ptr<const Atom>;
using Monomial = std::vector<AtomRef>;  ///< sorted, with repetition; empty: the constant part

int compare(const Atom& a, const Atom& b);
int compare(const Monomial& a, const Monomial& b);

struct MonomialLess {
  bool operator()(const Monomial& a, const Monomial& b) const { return compare(a, b) < 0; }
};

/// Monomial -> coefficient.
struct Dim::Terms : std::map<Monomial, std::int64_t, MonomialLess> {
  using map::map;
};

/// Of a number too.
Dim::Terms terms_of(const Dim& d);
Dim atom_of(Atom::Kind kind, std::string text, std::vector<Dim> operands);
/// The only atom of an expression "atom + number", else null.
const Atom* shifted_atom(const Dim& d, std::int64_t& shift);
std::int64_t constant_part(const Dim& d);

std::int64_t checked_add(std::int64_t a, std::int64_t b);
std::int64_t checked_mul(std::int64_t a, std::int64_t b);
std::int64_t floor_quotient(std::int64_t a, std::int64_t b);

}  // namespace backpass
