// Min, Max, Clip. NaN in, NaN out.
#include <limits>

#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/min_max.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Max {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    const T larger = a > b ? a : b;
    return a != a ? a : larger;
  }
};

struct Min {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
};

// p: lower and upper bound.
struct Clip {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams& p) {
    return Min::call(Max::call(x, static_cast<T>(p[0]), p), static_cast<T>(p[1]), p);
  }
};

TileLoop max(DType t) { return number_loop<Max, 2>(t); }
TileLoop min(DType t) { return number_loop<Min, 2>(t); }
TileLoop clip(DType t) { return real_loop<Clip, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(max, "Max", 2);
BACKPASS_TILE_FUNCTION(min, "Min", 2);

TileLimits clip_limits(const TileParams& p) { return {p[0], p[1]}; }

BACKPASS_TILE_FUNCTION(clip, "Clip", 1, false, clip_limits);

// ---- Min and Max of any number of inputs

Dim larger(const Dim& a, const Dim& b) { return max(a, b); }
Dim smaller(const Dim& a, const Dim& b) { return min(a, b); }

TileRegister fold(TileEmit& e, const TileFunction& function) {
  TileRegister result = e.inputs[0];
  for (std::size_t i = 1; i < e.inputs.size(); ++i) result = e.builder.apply(function, {result, e.inputs[i]});
  return result;
}

TileRegister emit_max(TileEmit& e) { return fold(e, max_tile); }
TileRegister emit_min(TileEmit& e) { return fold(e, min_tile); }

/// Shared evenly by the inputs that equal the result.
void extreme_gradient(GradientContext& g) {
  const std::size_t count = g.node.inputs.size();
  if (count == 1) return g.set(0, g.dy());
  std::vector<Value*> wins;
  for (std::size_t i = 0; i < count; ++i) wins.push_back(g.cast_like(g.equal(g.x(i), g.y()), g.y()));
  Value* winners = wins[0];
  for (std::size_t i = 1; i < count; ++i) winners = g.add(winners, wins[i]);
  Value* share = g.div(g.dy(), winners);
  for (std::size_t i = 0; i < count; ++i) g.set_reduced(i, g.mul(share, wins[i]));
}

const RegisterPointwise max_op{{.name = "Max",
                                .since = 13,
                                .doc = "Largest of all inputs, broadcasting.",
                                .inputs = {1, -1},
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<larger>,
                                .gradient = extreme_gradient},
                               {.emit = emit_max}};
const RegisterPointwise min_op{{.name = "Min",
                                .since = 13,
                                .doc = "Smallest of all inputs, broadcasting.",
                                .inputs = {1, -1},
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<smaller>,
                                .gradient = extreme_gradient},
                               {.emit = emit_min}};

// ---- Clip: bounds are optional scalars; where they cross, the upper one wins

void infer_clip(InferContext& c) {
  DType dtype = c.dtype(0);
  c.set_dtype(0, dtype);
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == dtype, "element type of bound ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(dtype));
    if (!c.knows_shape(i)) continue;
    Dim count = product(c.shape(i));
    c.require(!count.is_known() || count.is(1), "bound ", i, ": got shape ", shown(c.shape(i)), ", expected a scalar");
  }
  c.set_shape(0, c.shape(0));
}

/// Both bounds as numbers, infinite where omitted; none when one is known only later.
std::optional<TileParams> constant_bounds(const TileEmit& e) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TileParams bounds{-kInfinity, kInfinity};
  for (std::size_t i : {0U, 1U}) {
    if (!e.has(i + 1)) continue;
    std::optional<double> bound = e.builder.constant(e.inputs[i + 1]);
    if (!bound) return std::nullopt;
    bounds[i] = *bound;
  }
  return bounds;
}

TileRegister emit_clip(TileEmit& e) {
  TileRegister x = e.inputs[0];
  if (is_float(e.builder.type(x)) && (e.has(1) || e.has(2))) {
    if (std::optional<TileParams> bounds = constant_bounds(e)) return e.builder.apply(clip_tile, {x}, *bounds);
  }
  if (e.has(1)) x = e.builder.apply(max_tile, {x, e.inputs[1]});
  if (e.has(2)) x = e.builder.apply(min_tile, {x, e.inputs[2]});
  return x;
}

/// A bound has one element, of any rank.
void set_bound(GradientContext& g, std::size_t i, Value* where_it_counts) {
  if (!g.wants(i)) return;
  Value* part = g.where(where_it_counts, g.dy(), g.zero());
  g.set(i, g.reshape_like(g.op("ReduceSum", {part}, {{"keepdims", std::int64_t{0}}}), g.x(i)));
}

/// X passes within the bounds and on them, a bound where X is beyond it. Where bounds meet or cross, the upper one is
/// the result.
void clip_gradient(GradientContext& g) {
  Value* dx = g.dy();
  Value* below = nullptr;
  if (g.has_input(1)) {
    below = g.less(g.x(0), g.x(1));
    dx = g.where(below, g.zero(), dx);
    Value* counts = below;
    if (g.has_input(2)) counts = g.op("And", {below, g.less(g.x(1), g.x(2))});
    set_bound(g, 1, counts);
  }
  if (g.has_input(2)) {
    Value* above = g.greater(g.x(0), g.x(2));
    dx = g.where(above, g.zero(), dx);
    if (g.has_input(1)) above = g.op("Or", {above, g.op("LessOrEqual", {g.x(2), g.x(1)})});
    set_bound(g, 2, above);
  }
  g.set(0, dx);
}

const RegisterPointwise clip_op{{.name = "Clip",
                                 .since = 13,
                                 .doc = "X limited to [min, max].",
                                 .inputs = {1, 3},
                                 .types = types::numbers,
                                 .infer = infer_clip,
                                 .gradient = clip_gradient},
                                {.emit = emit_clip}};

// Before opset 11 the bounds were attributes.
void lift_clip(Builder& b, Node& node) {
  std::vector<Value*> inputs{node.input(0), node.input(1), node.input(2)};
  std::size_t position = 1;
  for (const char* bound : {"min", "max"}) {
    if (node.has_attribute(bound)) inputs[position] = b.scalar(node.attr_float(bound, 0), inputs[0]);
    node.attributes.erase(bound);
    ++position;
  }
  b.graph.set_inputs(node, inputs);
}

const RegisterAdapter clip_attributes{{"Clip", 11, lift_clip}};

}  // namespace
}  // namespace backpass
#endif
