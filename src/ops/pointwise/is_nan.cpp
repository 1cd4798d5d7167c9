// IsNaN, IsInf, com.microsoft IsFinite.
#include <array>
#include <limits>

#include "ops/pointwise/pointwise.hpp"
#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/is_nan.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct IsNaN {
  template <class T>
  static HWY_INLINE bool call(T x, const TileParams&) {
    return x != x;
  }
};

// p: the largest and the smallest number that do not count.
struct IsInf {
  template <class T>
  static HWY_INLINE bool call(T x, const TileParams& p) {
    const bool positive = p[0] != 0 && x > std::numeric_limits<T>::max();
    const bool negative = p[1] != 0 && x < std::numeric_limits<T>::lowest();
    return positive || negative;
  }
};

struct IsFinite {
  template <class T>
  static HWY_INLINE bool call(T x, const TileParams&) {
    return x >= std::numeric_limits<T>::lowest() && x <= std::numeric_limits<T>::max();
  }
};

TileLoop is_nan(DType t) { return real_loop<IsNaN, 1, true>(t); }
TileLoop is_inf(DType t) { return real_loop<IsInf, 1, true>(t); }
TileLoop is_finite(DType t) { return real_loop<IsFinite, 1, true>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(is_nan, "IsNaN", 1, true);
BACKPASS_TILE_FUNCTION(is_inf, "IsInf", 1, true);
BACKPASS_TILE_FUNCTION(is_finite, "IsFinite", 1, true);

constexpr DTypeSet kFloat8{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz};

using Bytes = std::array<bool, 256>;

Kernel prepare_lookup(PrepareContext& c, const Bytes& answers) {
  return [answers, n = c.in(0).size()](const KernelArgs& args) {
    const auto* x = args.in<std::uint8_t>(0);
    auto* y = args.out<bool>(0);
    for (std::int64_t i = 0; i < n; ++i) y[i] = answers[x[i]];
  };
}

// ---- IsNaN

Bytes nan_bytes(DType t) {
  Bytes answers{};
  for (std::size_t byte = 0; byte < answers.size(); ++byte) {
    switch (t) {
      case DType::float8e4m3fn:
        answers[byte] = (byte & 0x7f) == 0x7f;
        break;
      case DType::float8e5m2:
        answers[byte] = (byte & 0x7f) > 0x7c;
        break;
      default:
        answers[byte] = byte == 0x80;  // the "uz" kinds: what would be -0
    }
  }
  return answers;
}

Kernel prepare_is_nan(PrepareContext& c) {
  return kFloat8.has(c.in(0).dtype) ? prepare_lookup(c, nan_bytes(c.in(0).dtype)) : prepare_tile(c);
}

const RegisterPointwise is_nan_op{{.name = "IsNaN",
                                   .since = 20,
                                   .doc = "Where X is not a number.",
                                   .types = types::floats | kFloat8,
                                   .prepare = prepare_is_nan},
                                  {.function = &is_nan_tile}};

// ---- IsInf

TileParams wanted_signs(const Node& node) {
  return {static_cast<double>(node.attr_int("detect_positive", 1)),
          static_cast<double>(node.attr_int("detect_negative", 1))};
}

Kernel prepare_is_inf(PrepareContext& c) {
  if (!kFloat8.has(c.in(0).dtype)) return prepare_tile(c);
  Bytes answers{};
  TileParams wanted = wanted_signs(c.node);
  answers[0x7c] = c.in(0).dtype == DType::float8e5m2 && wanted[0] != 0;  // the only kind with infinities
  answers[0xfc] = c.in(0).dtype == DType::float8e5m2 && wanted[1] != 0;
  return prepare_lookup(c, answers);
}

const RegisterPointwise is_inf_op{{.name = "IsInf",
                                   .since = 20,
                                   .doc = "Where X is infinite, of the signs asked for.",
                                   .types = types::floats | kFloat8,
                                   .prepare = prepare_is_inf},
                                  {.function = &is_inf_tile, .params = wanted_signs}};

const RegisterPointwise is_finite_op{{.name = "IsFinite",
                                      .domain = "com.microsoft",
                                      .doc = "Where X is neither infinite nor NaN.",
                                      .types = types::floats},
                                     {.function = &is_finite_tile}};

}  // namespace
}  // namespace backpass
#endif
