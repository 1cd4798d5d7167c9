// What can be said of an expression for every number its symbols may stand for.
//
// First by intervals. Where these are too wide, an atom is replaced by what bounds it (min(n,5) by n or by 5,
// 2*floor(n/2) by n) or by each thing it can be, and the rest is asked again.
#include <algorithm>
#include <limits>

#include "graph/dim_terms.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kNoLow = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNoHigh = std::numeric_limits<std::int64_t>::max();
constexpr int kDepth = 4;    // atoms replaced, one inside the other
constexpr int kEffort = 64;  // questions asked in all

struct Interval {
  std::int64_t low = kNoLow;
  std::int64_t high = kNoHigh;
};

bool is_endless(std::int64_t x) { return x == kNoLow || x == kNoHigh; }

/// No limit stays none; a sum that leaves 64 bits has none either.
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (is_endless(a)) return a;
  if (is_endless(b)) return b;
  if (__builtin_add_overflow(a, b, &r)) return a < 0 ? kNoLow : kNoHigh;
  return r;
}

std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (a == 0 || b == 0) return 0;
  if (is_endless(a) || is_endless(b) || __builtin_mul_overflow(a, b, &r)) return (a < 0) == (b < 0) ? kNoHigh : kNoLow;
  return r;
}

Interval operator+(const Interval& a, const Interval& b) { return {plus(a.low, b.low), plus(a.high, b.high)}; }

Interval operator*(const Interval& a, const Interval& b) {
  auto corners = {times(a.low, b.low), times(a.low, b.high), times(a.high, b.low), times(a.high, b.high)};
  return {std::min(corners), std::max(corners)};
}

Interval interval_of(const Dim& d);

Interval interval_of_quotient(const Atom& atom) {
  const Interval a = interval_of(atom.operands[0]);
  const Interval b = interval_of(atom.operands[1]);
  auto divided = [&](std::int64_t x, std::int64_t by) {
    if (is_endless(x)) return x;
    return atom.kind == Atom::Kind::floor_quotient ? floor_quotient(x, by) : x / by;
  };
  if (b.low == b.high && b.low > 0) return {divided(a.low, b.low), divided(a.high, b.low)};
  if (a.low >= 0 && b.low >= 0) return {0, a.high};
  return {};
}

Interval interval_of(const Atom& atom) {
  if (atom.kind == Atom::Kind::symbol) return {0, kNoHigh};
  if (atom.kind == Atom::Kind::floor_quotient || atom.kind == Atom::Kind::truncated_quotient) {
    return interval_of_quotient(atom);
  }
  Interval all = interval_of(atom.operands[0]);
  for (std::size_t i = 1; i < atom.operands.size(); ++i) {
    const Interval other = interval_of(atom.operands[i]);
    const bool smallest = atom.kind == Atom::Kind::smallest;
    const bool largest = atom.kind == Atom::Kind::largest;
    all = {largest ? std::max(all.low, other.low) : std::min(all.low, other.low),
           smallest ? std::min(all.high, other.high) : std::max(all.high, other.high)};
  }
  return all;
}

Interval interval_of(const Dim& d) {
  if (d.is_known()) return {d.value(), d.value()};
  Interval sum{0, 0};
  for (const auto& [monomial, coefficient] : *d.terms()) {
    Interval term{coefficient, coefficient};
    for (const AtomRef& atom : monomial) term = term * interval_of(*atom);
    sum = sum + term;
  }
  return sum;
}

class Proof {
 public:
  /// d >= 0, whatever the symbols stand for.
  bool is_not_negative(const Dim& d, int depth = kDepth) {
    if (interval_of(d).low >= 0) return true;
    if (d.is_known() || depth == 0 || ++questions_ > kEffort) return false;
    for (const auto& [monomial, coefficient] : *d.terms()) {
      for (std::size_t i = 0; i < monomial.size(); ++i) {
        if (by_replacing(d, monomial, i, coefficient, depth - 1)) return true;
      }
    }
    return false;
  }

 private:
  /// By what bounds the i-th atom of a monomial from the side that matters, or by all it can be.
  bool by_replacing(const Dim& d, const Monomial& monomial, std::size_t i, std::int64_t coefficient, int depth) {
    const Atom& atom = *monomial[i];
    if (atom.kind == Atom::Kind::symbol || atom.kind == Atom::Kind::truncated_quotient) return false;
    Dim factor = coefficient;  // what the atom is multiplied by
    for (std::size_t k = 0; k < monomial.size(); ++k) {
      if (k == i) continue;
      if (interval_of(*monomial[k]).low < 0) return false;
      Dim::Terms other;
      other[{monomial[k]}] = 1;
      factor = factor * Dim(std::move(other));
    }
    Dim::Terms self;
    self[{monomial[i]}] = 1;
    const Dim rest = d - factor * Dim(std::move(self));
    if (atom.kind == Atom::Kind::floor_quotient) return by_quotient(rest, factor, atom, coefficient > 0, depth);
    auto holds = [&](const Dim& operand) { return is_not_negative(rest + factor * operand, depth); };
    const bool bounds = atom.kind == (coefficient < 0 ? Atom::Kind::smallest : Atom::Kind::largest);
    return bounds ? std::any_of(atom.operands.begin(), atom.operands.end(), holds)
                  : std::all_of(atom.operands.begin(), atom.operands.end(), holds);
  }

  /// a-k+1 <= k*floor(a/k) <= a. What is asked for is a whole number: k times it need only be more than -k.
  bool by_quotient(const Dim& rest, const Dim& factor, const Atom& atom, bool from_below, int depth) {
    const Dim& divisor = atom.operands[1];
    if (!divisor.is_known() || divisor.value() < 1) return false;
    const Dim bound = from_below ? atom.operands[0] - divisor + 1 : atom.operands[0];
    return is_not_negative(rest * divisor + factor * bound + (divisor - 1), depth);
  }

  int questions_ = 0;
};

}  // namespace

bool surely_at_most(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return a.value() <= b.value();
  try {
    return Proof().is_not_negative(b - a);
  } catch (const DimOverflow&) {
    return false;
  }
}

}  // namespace backpass
