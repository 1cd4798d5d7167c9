#include "ops/reductions/reduce_rules.hpp"

#include <map>

#include "gradient/rule.hpp"

namespace backpass {
namespace {

/// Axes of the node that are only known at run time.
bool has_open_axes(const GradientContext& g) { return g.has_input(1) && !g.x(1)->constant; }

/// The shape of X with ones at the reduced axes, for axes known at run time only.
Value* kept_shape(GradientContext& g) {
  Value* axes = g.x(1);
  Value* shape = g.shape_of(g.x());
  Value* ones = g.op("Expand", {g.b.integer(1), g.op("Shape", {axes})});
  Value* kept = g.op("ScatterElements", {shape, axes, ones});
  if (g.node.attr_int("noop_with_empty_axes", 0) != 0) return kept;
  Value* all = g.op("Expand", {g.b.integer(1), g.op("Shape", {shape})});
  return g.where(g.equal(g.op("Size", {axes}), g.b.integer(0)), all, kept);
}

/// A value of the result's shape with extents 1 at the reduced axes, so that it broadcasts to X.
Value* kept(GradientContext& g, Value* reduced) {
  if (has_open_axes(g)) return g.reshape_to(reduced, kept_shape(g));  // known to have X's rank
  if (g.node.attr_int("keepdims", 1) != 0) return reduced;
  std::vector<std::int64_t> axes;
  if (g.has_input(1)) axes = g.x(1)->constant->to_ints();
  if (axes.empty() && g.node.attr_int("noop_with_empty_axes", 0) == 0) {
    for (std::int64_t i = 0; i < g.rank(g.x()); ++i) axes.push_back(i);
  }
  return g.unsqueeze(reduced, std::move(axes));
}

/// Another reduction over the same axes, which are kept.
Value* reduce(GradientContext& g, std::string_view op, Value* a) {
  Value* result =
      g.op(op, {a, g.node.input(1)},
           {{"keepdims", std::int64_t{1}}, {"noop_with_empty_axes", g.node.attr_int("noop_with_empty_axes", 0)}});
  return has_open_axes(g) ? g.reshape_to(result, kept_shape(g)) : result;
}

/// Of X's shape or broadcasting to it.
void set_expanded(GradientContext& g, Value* gradient) {
  Value* dx = g.expand_like(gradient, g.x());
  g.set(0, has_open_axes(g) ? g.reshape_to(dx, g.shape_of(g.x())) : dx);
}

void sum_rule(GradientContext& g) { set_expanded(g, kept(g, g.dy())); }

/// 1 / (number of elements per result); in double, since 16 bits cannot hold the count.
Value* inverse_count(GradientContext& g) {
  auto from = g.known_dims(g.x());
  auto to = g.known_dims(g.y());
  if (from && to) {
    const std::int64_t n = element_count(*from);
    return g.number(n == 0 ? 0 : static_cast<double>(element_count(*to)) / static_cast<double>(n));
  }
  Value* n = g.cast(g.size_of(g.x()), DType::float64);
  return g.cast_like(g.div(g.cast(g.size_of(g.y()), DType::float64), n), g.dy());
}

void mean_rule(GradientContext& g) { set_expanded(g, kept(g, g.mul(g.dy(), inverse_count(g)))); }

/// Shared evenly by the elements that equal the result.
void extreme_rule(GradientContext& g) {
  Value* wins = g.cast_like(g.equal(g.x(), kept(g, g.y())), g.dy());
  Value* share = g.div(kept(g, g.dy()), reduce(g, "ReduceSum", wins));
  set_expanded(g, g.mul(wins, share));
}

/// The product of all others: that of the non-zero elements P, divided by the element unless it is 0. With one zero
/// among the elements only that one has a gradient, with two none has. S, the sum of the zeros, is 0 but has a
/// derivative: it stands for the zeros in the derivative of the gradient.
void product_rule(GradientContext& g) {
  Value* x = g.x();
  Value* one = g.one(x);
  Value* zero = g.zero(x);
  Value* is_zero = g.equal(x, zero);
  Value* safe = g.where(is_zero, one, x);
  Value* others = g.mul(kept(g, g.dy()), reduce(g, "ReduceProd", safe));
  Value* zeros = reduce(g, "ReduceSum", g.cast_like(is_zero, x));
  Value* sum = reduce(g, "ReduceSum", g.where(is_zero, x, zero));
  Value* has_none = g.equal(zeros, zero);
  Value* has_one = g.equal(zeros, one);
  Value* has_two = g.equal(zeros, g.number(2, x));
  Value* of_zero = g.where(has_one, one, g.where(has_two, g.sub(sum, x), zero));
  Value* of_other = g.div(g.where(has_none, one, g.where(has_one, sum, zero)), safe);
  set_expanded(g, g.mul(others, g.where(is_zero, of_zero, of_other)));
}

void l1_rule(GradientContext& g) { set_expanded(g, g.mul(kept(g, g.dy()), g.op("Sign", {g.x()}))); }

/// x / norm, and 0 where all elements are 0.
void l2_rule(GradientContext& g) {
  Value* norm = g.where(g.equal(g.y(), g.zero(g.y())), g.one(g.y()), g.y());
  set_expanded(g, g.mul(g.x(), kept(g, g.div(g.dy(), norm))));
}

void sum_square_rule(GradientContext& g) { set_expanded(g, g.mul(g.x(), kept(g, g.mul(g.dy(), g.number(2))))); }

void log_sum_rule(GradientContext& g) { set_expanded(g, kept(g, g.mul(g.dy(), g.exp(g.neg(g.y()))))); }

/// e^(x - y). Where y is infinite, x - y may have no value, and e^x says the same.
void log_sum_exp_rule(GradientContext& g) {
  Value* y = g.where(g.op("IsInf", {g.y()}), g.zero(g.y()), g.y());
  set_expanded(g, g.mul(kept(g, g.dy()), g.exp(g.sub(g.x(), kept(g, y)))));
}

}  // namespace

void (*reduce_rule(std::string_view op))(GradientContext&) {
  static const std::map<std::string_view, void (*)(GradientContext&)> rules{
      {"ReduceSum", sum_rule},         {"ReduceMean", mean_rule},
      {"ReduceMax", extreme_rule},     {"ReduceMin", extreme_rule},
      {"ReduceProd", product_rule},    {"ReduceL1", l1_rule},
      {"ReduceL2", l2_rule},           {"ReduceSumSquare", sum_square_rule},
      {"ReduceLogSum", log_sum_rule},  {"ReduceLogSumExp", log_sum_exp_rule},
      {"ReduceSumTraining", sum_rule},
  };
  auto it = rules.find(op);
  return it == rules.end() ? nullptr : it->second;
}

}  // namespace backpass
