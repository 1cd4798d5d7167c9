// Min, Max, Clip. NaN in, NaN out.
#include "graph/builder.hpp"
#include "kernels/simd.hpp"
#include "ops/pointwise.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/min_max.cpp"
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

TileLoop max(DType t) { return number_loop<Max, 2>(t); }
TileLoop min(DType t) { return number_loop<Min, 2>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(max, "Max", 2);
BACKPASS_TILE_FUNCTION(min, "Min", 2);

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

const RegisterPointwise max_op{{.name = "Max",
                                .since = 13,
                                .doc = "Largest of all inputs, broadcasting.",
                                .inputs = {1, -1},
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<larger>},
                               {.emit = emit_max}};
const RegisterPointwise min_op{{.name = "Min",
                                .since = 13,
                                .doc = "Smallest of all inputs, broadcasting.",
                                .inputs = {1, -1},
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<smaller>},
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

TileRegister emit_clip(TileEmit& e) {
  TileRegister x = e.inputs[0];
  if (e.has(1)) x = e.builder.apply(max_tile, {x, e.inputs[1]});
  if (e.has(2)) x = e.builder.apply(min_tile, {x, e.inputs[2]});
  return x;
}

const RegisterPointwise clip_op{{.name = "Clip",
                                 .since = 13,
                                 .doc = "X limited to [min, max].",
                                 .inputs = {1, 3},
                                 .types = types::numbers,
                                 .infer = infer_clip},
                                {.emit = emit_clip}};

// Before opset 11 the bounds were attributes.
void lift_clip(Builder& b, Node& node) {
  node.inputs.resize(3, nullptr);
  std::size_t position = 1;
  for (const char* bound : {"min", "max"}) {
    if (node.has_attribute(bound)) node.inputs[position] = b.scalar(node.attr_float(bound, 0), node.inputs[0]);
    node.attributes.erase(bound);
    ++position;
  }
}

const RegisterAdapter clip_attributes{{"Clip", 11, lift_clip}};

}  // namespace
}  // namespace backpass
#endif
