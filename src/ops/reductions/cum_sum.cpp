// CumSum and CumProd: running sums and products along an axis.
#include <algorithm>
#include <array>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  movement::require_index(c, 1);
  const Shape& in = c.shape(0);
  c.set_shape(0, in);
  if (auto axis = movement::numbers(movement::index_list(c, 1, "axis"))) {
    c.require(axis->size() == 1, "axis: got ", axis->size(), " numbers, expected one");
    c.axis((*axis)[0], in.size());
  }
}

struct Direction {
  bool exclusive;
  bool reverse;
};

/// The tensor as [outer, extent, inner].
struct Layout {
  std::int64_t outer, extent, inner;
};

struct Add {
  static constexpr int start = 0;
  template <class A>
  static A apply(A a, A b) {
    return a + b;
  }
};

struct Multiply {
  static constexpr int start = 1;
  template <class A>
  static A apply(A a, A b) {
    return a * b;
  }
};

/// Floats accumulate in double, integers wrap around.
template <class T>
using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double,
                                       std::make_unsigned_t<std::conditional_t<std::is_floating_point_v<T>, int, T>>>;

template <class Op, class T>
void scan(const Layout& l, Direction d, const T* in, T* out) {
  constexpr std::int64_t kColumns = 64;
  using A = Accumulator<T>;
  std::int64_t strips = (l.inner + kColumns - 1) / kColumns;
  parallel_for(l.outer * strips, grain_for(l.extent * std::min(l.inner, kColumns)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t item = begin; item < end; ++item) {
                   std::int64_t first = (item % strips) * kColumns;
                   std::int64_t width = std::min(kColumns, l.inner - first);
                   std::int64_t base = item / strips * l.extent * l.inner + first;
                   std::array<A, kColumns> running;
                   running.fill(static_cast<A>(Op::start));
                   for (std::int64_t step = 0; step < l.extent; ++step) {
                     std::int64_t row = base + (d.reverse ? l.extent - 1 - step : step) * l.inner;
                     for (std::int64_t j = 0; j < width; ++j) {
                       A& total = running[static_cast<std::size_t>(j)];
                       A next = Op::apply(total, static_cast<A>(in[row + j]));
                       out[row + j] = static_cast<T>(d.exclusive ? total : next);
                       total = next;
                     }
                   }
                 }
               });
}

template <class Op>
Kernel prepare(PrepareContext& c) {
  Dims dims = c.in(0).dims;
  DType dtype = c.in(0).dtype;
  DType axis_type = c.in(1).dtype;
  Direction direction{c.node.attr_int("exclusive", 0) != 0, c.node.attr_int("reverse", 0) != 0};
  c.require(c.in(1).size() == 1, "axis: got ", c.in(1).size(), " numbers, expected one");
  return [=, label = c.node.label()](const KernelArgs& args) {
    std::int64_t axis = axis_type == DType::int32 ? *args.in<std::int32_t>(1) : *args.in<std::int64_t>(1);
    auto rank = static_cast<std::int64_t>(dims.size());
    if (axis < -rank || axis >= rank) fail(label, " axis: got ", axis, ", expected one in [", -rank, ", ", rank, ")");
    auto a = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    Layout layout{product(dims, 0, a), dims[a], product(dims, a + 1, dims.size())};
    visit_real_or_integer(dtype, [&]<class T>() { scan<Op>(layout, direction, args.in<T>(0), args.out<T>(0)); });
  };
}

/// Running sums the way back: what element i added to.
Value* sums_back(GradientContext& g, Value* a) {
  return g.op("CumSum", {a, g.x(1)},
              {{"exclusive", g.node.attr_int("exclusive", 0)}, {"reverse", 1 - g.node.attr_int("reverse", 0)}});
}

Value* along(GradientContext& g, std::string_view op, Value* a) {
  return g.op(op, {a, g.x(1)},
              {{"exclusive", g.node.attr_int("exclusive", 0)}, {"reverse", g.node.attr_int("reverse", 0)}});
}

void sum_gradient(GradientContext& g) { g.set(0, sums_back(g, g.dy())); }

/// Element i is a factor of every product P that it is part of, which divided by it is the slope. Zeros are left out of
/// P and counted instead: a product with one zero depends on that one only, with two on none. S, the sum of the zeros,
/// is 0 but has a derivative: it stands for the zeros in the derivative of the gradient.
void product_gradient(GradientContext& g) {
  Value* x = g.x();
  Value* zero = g.zero(x);
  Value* is_zero = g.equal(x, zero);
  Value* safe = g.where(is_zero, g.one(x), x);
  Value* zeros = along(g, "CumSum", g.cast_like(is_zero, x));
  Value* s = along(g, "CumSum", g.where(is_zero, x, zero));
  Value* part = g.mul(g.dy(), along(g, "CumProd", safe));
  Value* with_one = g.where(g.equal(zeros, g.one(x)), part, zero);
  Value* with_two = g.where(g.equal(zeros, g.number(2, x)), part, zero);
  Value* without = g.where(g.equal(zeros, zero), part, zero);
  Value* of_other = g.div(sums_back(g, g.add(without, g.mul(with_one, s))), safe);
  Value* of_zero = g.sub(sums_back(g, g.add(with_one, g.mul(with_two, s))), g.mul(x, sums_back(g, with_two)));
  g.set(0, g.where(is_zero, of_zero, of_other));
}

constexpr DTypeSet kTypes = types::floats | DTypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};

const Register cum_sum{{.name = "CumSum",
                        .since = 14,
                        .doc = "Running sums along an axis, forwards or backwards, with or without the element itself.",
                        .inputs = {2, 2},
                        .types = kTypes,
                        .infer = infer,
                        .prepare = prepare<Add>,
                        .gradient = sum_gradient,
                        .half_through_float = true,
                        .in_place_input = 0}};

const Register cum_prod{
    {.name = "CumProd",
     .since = 26,
     .doc = "Running products along an axis, forwards or backwards, with or without the element itself.",
     .inputs = {2, 2},
     .types = kTypes,
     .infer = infer,
     .prepare = prepare<Multiply>,
     .gradient = product_gradient,
     .half_through_float = true,
     .in_place_input = 0}};

}  // namespace
}  // namespace backpass
