// And, Or, Xor, Not.
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/logical.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct And {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return (a != 0) & (b != 0);
  }
};

struct Or {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return (a != 0) | (b != 0);
  }
};

struct Xor {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return (a != 0) != (b != 0);
  }
};

struct Not {
  template <class T>
  static HWY_INLINE bool call(T a, const TileParams&) {
    return a == 0;
  }
};

template <class F, int Arity>
TileLoop bool_loop(DType t) {
  return t == DType::boolean ? element_loop_of<F, std::uint8_t, std::uint8_t, Arity>() : nullptr;
}

TileLoop logical_and(DType t) { return bool_loop<And, 2>(t); }
TileLoop logical_or(DType t) { return bool_loop<Or, 2>(t); }
TileLoop logical_xor(DType t) { return bool_loop<Xor, 2>(t); }
TileLoop logical_not(DType t) { return bool_loop<Not, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(logical_and, "And", 2);
BACKPASS_TILE_FUNCTION(logical_or, "Or", 2);
BACKPASS_TILE_FUNCTION(logical_xor, "Xor", 2);
BACKPASS_TILE_FUNCTION(logical_not, "Not", 1);

std::optional<Dim> both(const Dim& a, const Dim& b) {
  if (a.is(0) || b.is(0)) return Dim(0);
  return a.is(1) && b.is(1) ? std::optional<Dim>(1) : std::nullopt;
}

std::optional<Dim> either(const Dim& a, const Dim& b) {
  if (a.is(1) || b.is(1)) return Dim(1);
  return a.is(0) && b.is(0) ? std::optional<Dim>(0) : std::nullopt;
}

template <std::optional<Dim> (*F)(const Dim&, const Dim&)>
void infer_logical(InferContext& c) {
  infer_tile(c);
  propagate_ints(c, F);
}

void infer_not(InferContext& c) {
  infer_tile(c);
  auto values = c.maybe_ints(0);
  if (!values) return;
  for (Dim& d : *values) {
    if (!d.is_known()) return;
    d = Dim(d.is(0) ? 1 : 0);
  }
  c.set_ints(0, *std::move(values));
}

const RegisterPointwise and_op{{.name = "And",
                                .since = 7,
                                .doc = "Logical and, broadcasting.",
                                .types = types::boolean,
                                .infer = infer_logical<both>},
                               {.function = &logical_and_tile}};
const RegisterPointwise or_op{{.name = "Or",
                               .since = 7,
                               .doc = "Logical or, broadcasting.",
                               .types = types::boolean,
                               .infer = infer_logical<either>},
                              {.function = &logical_or_tile}};
const RegisterPointwise xor_op{
    {.name = "Xor", .since = 7, .doc = "Logical exclusive or, broadcasting.", .types = types::boolean},
    {.function = &logical_xor_tile}};
const RegisterPointwise not_op{
    {.name = "Not", .since = 1, .doc = "Logical not.", .types = types::boolean, .infer = infer_not},
    {.function = &logical_not_tile}};

}  // namespace
}  // namespace backpass
#endif
