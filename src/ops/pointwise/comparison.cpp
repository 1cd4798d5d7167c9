// Equal, Greater, GreaterOrEqual, Less, LessOrEqual.
#include <string>

#include "ops/pointwise/broadcast_walk.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/comparison.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Equal {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return a == b;
  }
};

struct Greater {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return a > b;
  }
};

struct GreaterOrEqual {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return a >= b;
  }
};

struct Less {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return a < b;
  }
};

struct LessOrEqual {
  template <class T>
  static HWY_INLINE bool call(T a, T b, const TileParams&) {
    return a <= b;
  }
};

TileLoop equal(DType t) {
  return t == DType::boolean ? elements<Equal, std::uint8_t, std::uint8_t, std::uint8_t>
                             : number_loop<Equal, 2, true>(t);
}
TileLoop greater(DType t) { return number_loop<Greater, 2, true>(t); }
TileLoop greater_or_equal(DType t) { return number_loop<GreaterOrEqual, 2, true>(t); }
TileLoop less(DType t) { return number_loop<Less, 2, true>(t); }
TileLoop less_or_equal(DType t) { return number_loop<LessOrEqual, 2, true>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(equal, "Equal", 2, true);
BACKPASS_TILE_FUNCTION(greater, "Greater", 2, true);
BACKPASS_TILE_FUNCTION(greater_or_equal, "GreaterOrEqual", 2, true);
BACKPASS_TILE_FUNCTION(less, "Less", 2, true);
BACKPASS_TILE_FUNCTION(less_or_equal, "LessOrEqual", 2, true);

// ---- Equal, which also compares strings

void infer_equal(InferContext& c) {
  infer_tile(c);
  propagate_ints(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> {
    if (a == b) return Dim(1);
    return surely_at_most(a + 1, b) || surely_at_most(b + 1, a) ? std::optional<Dim>(0) : std::nullopt;
  });
}

Kernel prepare_equal(PrepareContext& c) {
  if (c.in(0).dtype != DType::string) return prepare_tile(c);
  BroadcastWalk<2> walk({c.in(0).dims, c.in(1).dims}, c.out(0).dims);
  return [walk](const KernelArgs& args) {
    const auto* a = args.in<std::string>(0);
    const auto* b = args.in<std::string>(1);
    walk.each([a, b, out = args.out<bool>(0)](std::int64_t o, std::array<std::int64_t, 2> i) {
      out[o] = a[i[0]] == b[i[1]];
    });
  };
}

const RegisterPointwise equal_op{{.name = "Equal",
                                  .since = 19,
                                  .doc = "A == B, broadcasting; strings too.",
                                  .types = types::numbers | types::boolean | types::strings,
                                  .infer = infer_equal,
                                  .prepare = prepare_equal},
                                 {.function = &equal_tile}};

// ---- Order

std::optional<Dim> is_less(const Dim& a, const Dim& b) {
  if (surely_at_most(a + 1, b)) return Dim(1);
  return surely_at_most(b, a) ? std::optional<Dim>(0) : std::nullopt;
}

std::optional<Dim> is_at_most(const Dim& a, const Dim& b) {
  if (surely_at_most(a, b)) return Dim(1);
  return surely_at_most(b + 1, a) ? std::optional<Dim>(0) : std::nullopt;
}

template <std::optional<Dim> (*F)(const Dim&, const Dim&), bool Swapped = false>
void infer_order(InferContext& c) {
  infer_tile(c);
  propagate_ints(c, [](const Dim& a, const Dim& b) { return Swapped ? F(b, a) : F(a, b); });
}

const RegisterPointwise greater_op{{.name = "Greater",
                                    .since = 13,
                                    .doc = "A > B, broadcasting.",
                                    .types = types::numbers,
                                    .infer = infer_order<is_less, true>},
                                   {.function = &greater_tile}};
const RegisterPointwise greater_or_equal_op{{.name = "GreaterOrEqual",
                                             .since = 16,
                                             .doc = "A >= B, broadcasting.",
                                             .types = types::numbers,
                                             .infer = infer_order<is_at_most, true>},
                                            {.function = &greater_or_equal_tile}};
const RegisterPointwise less_op{{.name = "Less",
                                 .since = 13,
                                 .doc = "A < B, broadcasting.",
                                 .types = types::numbers,
                                 .infer = infer_order<is_less>},
                                {.function = &less_tile}};
const RegisterPointwise less_or_equal_op{{.name = "LessOrEqual",
                                          .since = 16,
                                          .doc = "A <= B, broadcasting.",
                                          .types = types::numbers,
                                          .infer = infer_order<is_at_most>},
                                         {.function = &less_or_equal_tile}};

}  // namespace
}  // namespace backpass
#endif
