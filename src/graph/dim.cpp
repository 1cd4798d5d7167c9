#include "graph/dim.hpp"

#include <algorithm>

#include "graph/dim_terms.hpp"

namespace backpass {

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) fail<DimOverflow>("shape arithmetic overflows: ", a, " + ", b);
  return r;
}

std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) fail<DimOverflow>("shape arithmetic overflows: ", a, " * ", b);
  return r;
}

namespace {

int compare(std::int64_t a, std::int64_t b) { return a < b ? -1 : (a > b ? 1 : 0); }

int compare(const Dim& a, const Dim& b) {
  const Dim::Terms left = terms_of(a);
  const Dim::Terms right = terms_of(b);
  auto l = left.begin();
  auto r = right.begin();
  for (; l != left.end() && r != right.end(); ++l, ++r) {
    if (int c = backpass::compare(l->first, r->first); c != 0) return c;
    if (int c = compare(l->second, r->second); c != 0) return c;
  }
  return compare(std::ssize(left), std::ssize(right));
}

}  // namespace

int compare(const Atom& a, const Atom& b) {
  if (&a == &b) return 0;
  if (int c = a.text.compare(b.text); c != 0) return c;
  if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
  // Equal texts with other operands: a symbol may have been given the name of an expression.
  for (std::size_t i = 0; i < std::min(a.operands.size(), b.operands.size()); ++i) {
    if (int c = compare(a.operands[i], b.operands[i]); c != 0) return c;
  }
  return compare(std::ssize(a.operands), std::ssize(b.operands));
}

int compare(const Monomial& a, const Monomial& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (int c = compare(*a[i], *b[i]); c != 0) return c;
  }
  return compare(std::ssize(a), std::ssize(b));
}

// ---- Building

Dim::Dim(Terms terms) {
  std::erase_if(terms, [](const auto& t) { return t.second == 0; });
  if (terms.empty()) return;
  if (terms.size() == 1 && terms.begin()->first.empty()) {
    value_ = terms.begin()->second;
  } else {
    terms_ = std::make_shared<const Terms>(std::move(terms));
  }
}

Dim Dim::symbol(const std::string& name) { return atom_of(Atom::Kind::symbol, name, {}); }

Dim atom_of(Atom::Kind kind, std::string text, std::vector<Dim> operands) {
  Dim::Terms terms;
  terms[{std::make_shared<const Atom>(Atom{kind, std::move(text), std::move(operands)})}] = 1;
  return Dim(std::move(terms));
}

Dim::Terms terms_of(const Dim& d) {
  if (d.terms() != nullptr) return *d.terms();
  Dim::Terms terms;
  if (!d.is(0)) terms[{}] = d.value();
  return terms;
}

const Atom* shifted_atom(const Dim& d, std::int64_t& shift) {
  shift = 0;
  if (d.is_known() || d.terms()->size() > 2) return nullptr;
  const Atom* atom = nullptr;
  for (const auto& [monomial, coefficient] : *d.terms()) {
    if (monomial.empty()) {
      shift = coefficient;
    } else {
      if (atom != nullptr || coefficient != 1 || monomial.size() != 1) return nullptr;
      atom = monomial.front().get();
    }
  }
  return atom;
}

std::int64_t constant_part(const Dim& d) {
  if (d.is_known()) return d.value();
  auto it = d.terms()->find({});
  return it == d.terms()->end() ? 0 : it->second;
}

std::optional<std::string> Dim::symbol_name() const {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(*this, shift);
  if (atom == nullptr || shift != 0) return std::nullopt;
  return atom->text;
}

bool Dim::is_compound() const {
  std::int64_t shift = 0;
  const Atom* atom = shifted_atom(*this, shift);
  return atom != nullptr && shift == 0 && atom->kind != Atom::Kind::symbol;
}

// ---- Arithmetic

bool operator==(const Dim& a, const Dim& b) {
  if (a.is_known() || b.is_known()) return a.is_known() && b.is_known() && a.value_ == b.value_;
  return a.terms_ == b.terms_ || compare(a, b) == 0;
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return checked_add(a.value_, b.value_);
  Dim::Terms sum = terms_of(a);
  for (const auto& [monomial, coefficient] : terms_of(b)) sum[monomial] = checked_add(sum[monomial], coefficient);
  return Dim(std::move(sum));
}

Dim operator-(const Dim& a, const Dim& b) { return a + b * Dim(-1); }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return checked_mul(a.value_, b.value_);
  Dim::Terms result;
  const Dim::Terms right = terms_of(b);
  for (const auto& [la, lc] : terms_of(a)) {
    for (const auto& [ra, rc] : right) {
      Monomial both = la;
      both.insert(both.end(), ra.begin(), ra.end());
      std::sort(both.begin(), both.end(), [](const AtomRef& x, const AtomRef& y) { return compare(*x, *y) < 0; });
      result[both] = checked_add(result[both], checked_mul(lc, rc));
    }
  }
  return Dim(std::move(result));
}

// ---- Looking inside

bool Dim::mentions(const std::string& atom) const {
  if (is_known()) return false;
  for (const auto& [monomial, coefficient] : *terms_) {
    for (const AtomRef& a : monomial) {
      auto inside = [&](const Dim& d) { return d.mentions(atom); };
      if (a->text == atom || std::any_of(a->operands.begin(), a->operands.end(), inside)) return true;
    }
  }
  return false;
}

namespace {

bool is_division_by_zero(const Atom& atom, const std::vector<Dim>& operands) {
  return atom.kind == Atom::Kind::floor_quotient && operands[1].is(0);
}

Dim rebuilt(const Atom& atom, const std::vector<Dim>& operands) {
  auto folded = [&](Dim (*f)(const Dim&, const Dim&)) {
    Dim result = operands[0];
    for (std::size_t i = 1; i < operands.size(); ++i) result = f(result, operands[i]);
    return result;
  };
  switch (atom.kind) {
    case Atom::Kind::floor_quotient:
      return folded([](const Dim& a, const Dim& b) { return floor_div(a, b); });
    case Atom::Kind::truncated_quotient:
      return folded([](const Dim& a, const Dim& b) { return truncated_div(a, b); });
    case Atom::Kind::smallest:
      return folded([](const Dim& a, const Dim& b) { return min(a, b); });
    case Atom::Kind::largest:
      return folded([](const Dim& a, const Dim& b) { return max(a, b); });
    case Atom::Kind::broadcast:
      return folded([](const Dim& a, const Dim& b) { return broadcast(a, b); });
    case Atom::Kind::or_else:
      return folded([](const Dim& a, const Dim& b) { return unless_zero(a, b); });
    case Atom::Kind::symbol:
      break;
  }
  return Dim::symbol(atom.text);
}

Dim replaced(const Atom& atom, const std::map<std::string, Dim>& known) {
  if (auto it = known.find(atom.text); it != known.end()) return it->second;
  std::vector<Dim> operands;
  for (const Dim& d : atom.operands) operands.push_back(d.substituted(known));
  if (operands == atom.operands || is_division_by_zero(atom, operands)) {
    return atom_of(atom.kind, atom.text, atom.operands);
  }
  return rebuilt(atom, operands);
}

}  // namespace

Dim Dim::substituted(const std::map<std::string, Dim>& known) const {
  auto is_mentioned = [&](const auto& k) { return mentions(k.first); };
  if (is_known() || std::none_of(known.begin(), known.end(), is_mentioned)) return *this;
  Dim sum = 0;
  for (const auto& [monomial, coefficient] : *terms_) {
    Dim term = coefficient;
    for (const AtomRef& atom : monomial) term = term * replaced(*atom, known);
    sum = sum + term;
  }
  return sum;
}

std::string Dim::str() const {
  if (is_known()) return std::to_string(value_);
  std::string text;
  for (const auto& [monomial, coefficient] : *terms_) {
    std::string term;
    for (const AtomRef& atom : monomial) term += (term.empty() ? "" : "*") + atom->text;
    std::int64_t magnitude = coefficient;
    if (text.empty()) {
      if (coefficient == -1 && !term.empty()) {
        text = "-";
        magnitude = 1;
      }
    } else {
      text += coefficient < 0 ? "-" : "+";
      magnitude = coefficient < 0 ? -coefficient : coefficient;
    }
    if (term.empty()) {
      text += std::to_string(magnitude);
    } else {
      text += (magnitude == 1 ? "" : std::to_string(magnitude) + "*") + term;
    }
  }
  return text;
}

Shape to_shape(std::span<const std::int64_t> dims) { return {dims.begin(), dims.end()}; }

bool is_known(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.is_known(); });
}

Dims to_dims(const Shape& shape) {
  Dims dims;
  dims.reserve(shape.size());
  for (const Dim& d : shape) dims.push_back(d.value());
  return dims;
}

Dim product(std::span<const Dim> dims) {
  Dim p = 1;
  for (const Dim& d : dims) p = p * d;
  return p;
}

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + shape[i].str();
  return s + "]";
}

}  // namespace backpass
