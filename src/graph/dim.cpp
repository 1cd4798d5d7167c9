#include "graph/dim.hpp"

#include <algorithm>

namespace backpass {
namespace {

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

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  std::int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

}  // namespace

Dim Dim::symbol(const std::string& name) { return from_terms({{{name}, 1}}); }

Dim::Terms Dim::terms() const {
  if (terms_) return *terms_;
  return value_ == 0 ? Terms{} : Terms{{{}, value_}};
}

Dim Dim::from_terms(Terms terms) {
  std::erase_if(terms, [](const auto& t) { return t.second == 0; });
  if (terms.empty()) return 0;
  if (terms.size() == 1 && terms.begin()->first.empty()) return terms.begin()->second;
  Dim d;
  d.terms_ = std::make_shared<const Terms>(std::move(terms));
  return d;
}

std::optional<std::string> Dim::symbol_name() const {
  if (!terms_ || terms_->size() != 1) return std::nullopt;
  const auto& [atoms, coefficient] = *terms_->begin();
  if (coefficient != 1 || atoms.size() != 1) return std::nullopt;
  return atoms.front();
}

bool operator==(const Dim& a, const Dim& b) {
  if (a.is_known() || b.is_known()) return a.is_known() && b.is_known() && a.value_ == b.value_;
  return a.terms_ == b.terms_ || *a.terms_ == *b.terms_;
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return checked_add(a.value_, b.value_);
  Dim::Terms sum = a.terms();
  for (const auto& [atoms, coefficient] : b.terms()) sum[atoms] = checked_add(sum[atoms], coefficient);
  return Dim::from_terms(std::move(sum));
}

Dim operator-(const Dim& a, const Dim& b) { return a + b * Dim(-1); }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return checked_mul(a.value_, b.value_);
  Dim::Terms result;
  const Dim::Terms left = a.terms();
  const Dim::Terms right = b.terms();
  for (const auto& [la, lc] : left) {
    for (const auto& [ra, rc] : right) {
      std::vector<std::string> atoms = la;
      atoms.insert(atoms.end(), ra.begin(), ra.end());
      std::sort(atoms.begin(), atoms.end());
      result[atoms] = checked_add(result[atoms], checked_mul(lc, rc));
    }
  }
  return Dim::from_terms(std::move(result));
}

Dim floor_div(const Dim& a, const Dim& b) {
  if (b.is(0)) fail("shape arithmetic divides by zero: ", a.str(), " / 0");
  if (a.is_known() && b.is_known()) return floor_quotient(a.value_, b.value_);
  if (b.is(1)) return a;
  if (a == b) return 1;
  const Dim::Terms divisor = b.terms();
  if (divisor.size() == 1) {  // term by term, if every term divides
    const auto& [atoms, coefficient] = *divisor.begin();
    Dim::Terms quotient;
    bool exact = true;
    for (const auto& [numerator_atoms, c] : a.terms()) {
      exact = exact && c % coefficient == 0 &&
              std::includes(numerator_atoms.begin(), numerator_atoms.end(), atoms.begin(), atoms.end());
      if (!exact) break;
      std::vector<std::string> rest;
      std::set_difference(numerator_atoms.begin(), numerator_atoms.end(), atoms.begin(), atoms.end(),
                          std::back_inserter(rest));
      quotient[rest] = c / coefficient;
    }
    if (exact) return Dim::from_terms(std::move(quotient));
  }
  return Dim::symbol("floor((" + a.str() + ")/(" + b.str() + "))");
}

Dim min(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return std::min(a.value_, b.value_);
  if (a == b) return a;
  return Dim::symbol("min(" + a.str() + "," + b.str() + ")");
}

Dim max(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return std::max(a.value_, b.value_);
  if (a == b) return a;
  return Dim::symbol("max(" + a.str() + "," + b.str() + ")");
}

Dim Dim::substituted(const std::map<std::string, Dim>& known) const {
  if (is_known() || known.empty()) return *this;
  Dim sum = 0;
  for (const auto& [atoms, coefficient] : *terms_) {
    Dim term = coefficient;
    for (const auto& atom : atoms) {
      auto it = known.find(atom);
      term = term * (it == known.end() ? symbol(atom) : it->second);
    }
    sum = sum + term;
  }
  return sum;
}

std::string Dim::str() const {
  if (is_known()) return std::to_string(value_);
  std::string text;
  for (const auto& [atoms, coefficient] : *terms_) {
    std::string term;
    for (const auto& atom : atoms) term += (term.empty() ? "" : "*") + atom;
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
