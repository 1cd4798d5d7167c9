// A tensor extent: a number, or an expression over named symbols ("batch", "seq*heads", "floor((n+1)/2)").
//
// Symbols stand for extents: any number from 0 on. Expressions also describe the contents of small integer tensors
// (what Shape, Sub, Div ... compute), which may be negative. They are kept as polynomials with integer coefficients
// over atoms: symbols, and what is not a polynomial (floor division, min, max, ...) with its operands. Equal
// computations are recognised as equal, and nothing is simplified that does not hold for every number the symbols may
// stand for. Binding never evaluates expressions: shape rules are simply run again with numbers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  struct Terms;  ///< the polynomial (dim_terms.hpp)

  Dim() = default;
  Dim(std::int64_t value) : value_(value) {}  // NOLINT: implicit on purpose
  explicit Dim(Terms terms);
  static Dim symbol(const std::string& name);

  bool is_known() const { return terms_ == nullptr; }
  bool is(std::int64_t v) const { return is_known() && value_ == v; }
  std::int64_t value() const {
    ensure(is_known(), "extent ", shown(*this), " read as a number");
    return value_;
  }
  /// The text of a bare atom (a symbol's name, "min(n,5)"), or nullopt for numbers and sums and products.
  std::optional<std::string> symbol_name() const;
  /// Whether it is a bare atom with operands: "min(n,5)", not "n".
  bool is_compound() const;
  /// Whether an atom of this text occurs anywhere in it.
  bool mentions(const std::string& atom) const;
  /// Null for a number.
  const Terms* terms() const { return terms_.get(); }

  /// Equal whatever the symbols stand for. False does not mean different: "a" and "b" may be bound to the same number.
  friend bool operator==(const Dim&, const Dim&);
  /// a <= b whatever the symbols stand for. False does not mean the opposite: it only could not be proven.
  friend bool surely_at_most(const Dim& a, const Dim& b);

  friend Dim operator+(const Dim&, const Dim&);
  friend Dim operator-(const Dim&, const Dim&);
  friend Dim operator*(const Dim&, const Dim&);
  /// Rounds towards negative infinity. The divisor is taken not to be 0: rules refuse what divides by 0.
  friend Dim floor_div(const Dim&, const Dim&);
  friend Dim ceil_div(const Dim& a, const Dim& b) { return floor_div(a + b - 1, b); }
  /// What the operator Div does: rounds towards zero, and x / 0 is 0.
  friend Dim truncated_div(const Dim&, const Dim&);
  friend Dim min(const Dim&, const Dim&);
  friend Dim max(const Dim&, const Dim&);
  /// The extent two extents broadcast to, given that they do.
  friend Dim broadcast(const Dim&, const Dim&);
  /// a, or b where a is 0.
  friend Dim unless_zero(const Dim& a, const Dim& b);

  /// Replaces atoms by what `known` says of them, wherever they stand.
  Dim substituted(const std::map<std::string, Dim>& known) const;

  std::string str() const;

 private:
  std::int64_t value_ = 0;
  std::shared_ptr<const Terms> terms_;  // null: a number
};

Dim broadcast(const Dim&, const Dim&);

/// d >= n, and d < 0, whatever the symbols stand for.
inline bool surely_at_least(const Dim& d, std::int64_t n) { return surely_at_most(Dim(n), d); }
inline bool surely_negative(const Dim& d) { return surely_at_most(d, Dim(-1)); }

/// What it is where no extent is 0: a for unless_zero(a,b). Enough for what is only about elements.
Dim where_not_empty(const Dim& d);

/// a == b solved for the function in a: "min(n,511)" and n for min(n,511)+1 == n+1. nullopt when there is none.
std::optional<std::pair<std::string, Dim>> solved_for_function(const Dim& a, const Dim& b);
/// Whether two extents that broadcast must be equal: min(n,512) and n, since where they differ neither is 1.
bool are_equal_if_they_broadcast(const Dim& a, const Dim& b);

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
