// Functions of extents that are no polynomials: quotients, the smaller and the larger, what broadcasts.
#include <algorithm>
#include <numeric>

#include "graph/dim_terms.hpp"

namespace backpass {

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  std::int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

namespace {

std::string call(const char* name, const std::vector<Dim>& operands) {
  std::string text = name;
  for (const Dim& d : operands) text += (&d == operands.data() ? "(" : ",") + d.str();
  return text + ")";
}

// ---- Quotients

Dim floor_atom(const Dim& a, const Dim& b) {
  return atom_of(Atom::Kind::floor_quotient, "floor((" + a.str() + ")/(" + b.str() + "))", {a, b});
}

/// By a number above 1: floor((5*n+7)/2) is 2*n+3+floor((n+1)/2).
Dim divided_by_number(const Dim& a, std::int64_t by) {
  Dim::Terms whole;
  Dim::Terms rest;
  std::int64_t common = by;
  for (const auto& [monomial, coefficient] : *a.terms()) {
    whole[monomial] = floor_quotient(coefficient, by);
    rest[monomial] = coefficient - whole[monomial] * by;
    if (!monomial.empty()) common = std::gcd(common, rest[monomial]);
  }
  if (common == by) {  // only a number, less than the divisor, is left
    return Dim(std::move(whole));
  }
  for (auto& [monomial, coefficient] : rest) coefficient /= common;
  return Dim(std::move(whole)) + floor_atom(Dim(std::move(rest)), by / common);
}

/// Term by term, if every term divides.
std::optional<Dim> exact_quotient(const Dim& a, const Dim& b) {
  if (b.terms()->size() != 1) return std::nullopt;
  const auto& [atoms, coefficient] = *b.terms()->begin();
  auto less = [](const AtomRef& x, const AtomRef& y) { return compare(*x, *y) < 0; };
  Dim::Terms quotient;
  for (const auto& [numerator, c] : terms_of(a)) {
    if (c % coefficient != 0) return std::nullopt;
    if (!std::includes(numerator.begin(), numerator.end(), atoms.begin(), atoms.end(), less)) return std::nullopt;
    Monomial rest;
    std::set_difference(numerator.begin(), numerator.end(), atoms.begin(), atoms.end(), std::back_inserter(rest), less);
    quotient[rest] = c / coefficient;
  }
  return Dim(std::move(quotient));
}

}  // namespace

Dim floor_div(const Dim& a, const Dim& b) {
  if (b.is(0)) fail("shape arithmetic divides by zero: ", a.str(), " / 0");
  if (a.is_known() && b.is_known()) return floor_quotient(a.value(), b.value());
  if (b.is(1)) return a;
  if (a == b) return 1;
  if (b.is_known()) return b.value() < 0 ? floor_div(a * Dim(-1), b * Dim(-1)) : divided_by_number(a, b.value());
  if (auto exact = exact_quotient(a, b)) return *exact;
  return floor_atom(a, b);
}

Dim truncated_div(const Dim& a, const Dim& b) {
  if (b.is(0)) return 0;
  if (b.is(1)) return a;
  if (b.is(-1)) return a * Dim(-1);
  if (a.is_known() && b.is_known()) return a.value() / b.value();
  if (surely_negative(b)) return truncated_div(a * Dim(-1), b * Dim(-1));
  if (surely_at_least(b, 1)) {
    if (surely_at_least(a, 0)) return floor_div(a, b);
    if (surely_at_most(a, 0)) return floor_div(a * Dim(-1), b) * Dim(-1);
  }
  return atom_of(Atom::Kind::truncated_quotient, call("truncate", {a, b}), {a, b});
}

// ---- The smaller and the larger

namespace {

/// min(min(a,b)+2,c) is min(a+2,b+2,c).
void collect(Atom::Kind kind, const Dim& d, std::vector<Dim>& operands) {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(d, shift);
  if (atom == nullptr || atom->kind != kind) {
    operands.push_back(d);
    return;
  }
  for (const Dim& inner : atom->operands) operands.push_back(inner + shift);
}

/// Without those that another one makes superfluous.
void drop_dominated(Atom::Kind kind, std::vector<Dim>& operands) {
  auto wins = [&](const Dim& a, const Dim& b) {
    return kind == Atom::Kind::smallest ? surely_at_most(a, b) : surely_at_most(b, a);
  };
  for (std::size_t i = 0; i < operands.size();) {
    bool dominated = false;
    for (std::size_t k = 0; k < operands.size() && !dominated; ++k)
      dominated = k != i && wins(operands[k], operands[i]);
    if (dominated) {
      operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

/// One form for min(n,5)-2 and min(n-2,3): the first operand that is no number has no constant part.
Dim extreme(Atom::Kind kind, const Dim& a, const Dim& b) {
  std::vector<Dim> operands;
  collect(kind, a, operands);
  collect(kind, b, operands);
  drop_dominated(kind, operands);
  if (operands.size() == 1) return operands.front();
  auto key = [](const Dim& d) { return std::pair(d.is_known(), (d - constant_part(d)).str()); };
  std::sort(operands.begin(), operands.end(), [&](const Dim& x, const Dim& y) { return key(x) < key(y); });
  const std::int64_t shift = constant_part(operands.front());
  for (Dim& d : operands) d = d - shift;
  std::string text = call(kind == Atom::Kind::smallest ? "min" : "max", operands);
  return atom_of(kind, std::move(text), std::move(operands)) + shift;
}

}  // namespace

Dim min(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return std::min(a.value(), b.value());
  return a == b ? a : extreme(Atom::Kind::smallest, a, b);
}

Dim max(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return std::max(a.value(), b.value());
  return a == b ? a : extreme(Atom::Kind::largest, a, b);
}

// ---- Broadcasting, and 0 that stands for something else

Dim broadcast(const Dim& a, const Dim& b) {
  if (a == b || b.is(1)) return a;
  if (a.is(1)) return b;
  if (a.is_known() || surely_at_least(a, 2)) return a;  // no 1, so it decides
  if (b.is_known() || surely_at_least(b, 2)) return b;
  std::vector<Dim> operands;
  for (const Dim& d : {a, b}) {
    std::int64_t shift = 0;
    const Atom* atom = shifted_atom(d, shift);
    const bool nested = atom != nullptr && shift == 0 && atom->kind == Atom::Kind::broadcast;
    for (const Dim& inner : nested ? atom->operands : std::vector<Dim>{d}) {
      if (std::find(operands.begin(), operands.end(), inner) == operands.end()) operands.push_back(inner);
    }
  }
  std::sort(operands.begin(), operands.end(), [](const Dim& x, const Dim& y) { return x.str() < y.str(); });
  return atom_of(Atom::Kind::broadcast, call("broadcast", operands), operands);
}

namespace {

/// b is 0 wherever a, a product of symbols, is.
bool vanishes_with(const Dim& a, const Dim& b) {
  if (b.is(0)) return true;
  if (a.terms()->size() != 1) return false;
  auto vanishes = [&](const AtomRef& atom) { return b.substituted({{atom->text, Dim(0)}}).is(0); };
  const Monomial& atoms = a.terms()->begin()->first;
  return std::all_of(atoms.begin(), atoms.end(), vanishes);
}

}  // namespace

std::optional<std::pair<std::string, Dim>> solved_for_function(const Dim& a, const Dim& b) {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(a, shift);
  if (atom == nullptr || atom->kind == Atom::Kind::symbol || b.mentions(atom->text)) return std::nullopt;
  return std::pair(atom->text, b - shift);
}

bool are_equal_if_they_broadcast(const Dim& a, const Dim& b) {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(a, shift);
  if (atom == nullptr || (atom->kind != Atom::Kind::smallest && atom->kind != Atom::Kind::or_else)) return false;
  const std::vector<Dim>& operands = atom->operands;
  const std::ptrdiff_t equal = std::count(operands.begin(), operands.end(), b - shift);
  if (equal == 0 || (atom->kind == Atom::Kind::or_else && (operands[0] != b || shift != 0))) return false;
  return std::all_of(operands.begin(), operands.end(),
                     [&](const Dim& d) { return d == b - shift || surely_at_least(d + shift, 2); });
}

namespace {

void collect_first_choices(const Dim& d, std::map<std::string, Dim>& choices) {
  if (d.is_known()) return;
  for (const auto& [monomial, coefficient] : *d.terms()) {
    for (const AtomRef& atom : monomial) {
      if (atom->kind == Atom::Kind::or_else) choices.emplace(atom->text, atom->operands[0]);
      for (const Dim& operand : atom->operands) collect_first_choices(operand, choices);
    }
  }
}

}  // namespace

Dim where_not_empty(const Dim& d) {
  std::map<std::string, Dim> choices;
  collect_first_choices(d, choices);
  return d.substituted(choices);
}

namespace {

/// Something else, which is not 0 either, already stands for 0 in it.
bool is_never_zero(const Dim& d) {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(d, shift);
  return atom != nullptr && shift == 0 && atom->kind == Atom::Kind::or_else && surely_at_least(atom->operands[1], 1);
}

}  // namespace

Dim unless_zero(const Dim& a, const Dim& b) {
  if (a.is_known()) return a.is(0) ? b : a;
  if (is_never_zero(a)) return a;
  std::int64_t shift = 0;
  const Atom* inner = shifted_atom(b, shift);
  if (inner != nullptr && shift == 0 && inner->kind == Atom::Kind::or_else && inner->operands[0] == a) return b;
  if (a == b || surely_at_least(a, 1) || surely_negative(a) || vanishes_with(a, b)) return a;
  return atom_of(Atom::Kind::or_else, call("unless_zero", {a, b}), {a, b});
}

}  // namespace backpass
