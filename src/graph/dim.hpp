// A tensor extent: a number, or an expression over named symbols ("batch", "seq*heads", "floor((n+1)/2)").
//
// Expressions are kept as polynomials with integer coefficients. What is not a polynomial (floor division, max, ...)
// becomes an atom named by its own text, so equal computations are recognised as equal. Binding never evaluates
// expressions: shape rules are simply run again with numbers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/error.hpp"
#include "backpass/tensor.hpp"

namespace backpass {

/// Arithmetic on extents that leaves 64 bits.
class DimOverflow : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

class Dim {
 public:
  Dim() = default;
  Dim(std::int64_t value) : value_(value) {}  // NOLINT: implicit on purpose
  static Dim symbol(const std::string& name);

  bool is_known() const { return terms_ == nullptr; }
  bool is(std::int64_t v) const { return is_known() && value_ == v; }
  std::int64_t value() const {
    ensure(is_known(), "extent ", shown(*this), " read as a number");
    return value_;
  }
  /// The bare symbol's name, or nullopt for numbers and compound expressions.
  std::optional<std::string> symbol_name() const;

  /// Equal whatever the symbols stand for. False does not mean different: "a" and "b" may be bound to the same number.
  friend bool operator==(const Dim&, const Dim&);

  friend Dim operator+(const Dim&, const Dim&);
  friend Dim operator-(const Dim&, const Dim&);
  friend Dim operator*(const Dim&, const Dim&);
  /// Rounds towards negative infinity; exact polynomial quotients are simplified. The divisor must not be the number 0.
  friend Dim floor_div(const Dim&, const Dim&);
  friend Dim ceil_div(const Dim& a, const Dim& b) { return floor_div(a + b - 1, b); }
  friend Dim min(const Dim&, const Dim&);
  friend Dim max(const Dim&, const Dim&);

  /// Replaces bare symbols by what `known` says of them.
  Dim substituted(const std::map<std::string, Dim>& known) const;

  std::string str() const;

 private:
  // Monomial (sorted atoms, with repetition) -> coefficient; the empty monomial is the constant part.
  using Terms = std::map<std::vector<std::string>, std::int64_t>;
  static Dim from_terms(Terms terms);
  Terms terms() const;

  std::int64_t value_ = 0;
  std::shared_ptr<const Terms> terms_;  // null: a number
};

/// f(), or nothing when that overflows: contents that are no extents may, and are left to the kernel, which wraps.
template <class F>
std::optional<Dim> unless_it_overflows(F&& f) {
  try {
    return f();
  } catch (const DimOverflow&) {
    return std::nullopt;
  }
}

using Shape = std::vector<Dim>;

Shape to_shape(std::span<const std::int64_t> dims);
bool is_known(const Shape&);
Dims to_dims(const Shape&);  ///< requires is_known
Dim product(std::span<const Dim>);
std::string to_string(const Shape&);

}  // namespace backpass
