// Where.
#include <string>

#include "gradient/rule.hpp"
#include "ops/pointwise/broadcast_walk.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "ops/shape_rules.hpp"
#include "support/simd.hpp"
#include "support/visit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/where.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Where {
  template <class T>
  static HWY_INLINE T call(std::uint8_t condition, T x, T y, const TileParams&) {
    return condition != 0 ? x : y;
  }
};

TileLoop where(DType t) {
  switch (bit_width(t)) {
    case 8:
      return elements<Where, std::uint8_t, std::uint8_t, std::uint8_t, std::uint8_t>;
    case 16:
      return elements<Where, std::uint16_t, std::uint8_t, std::uint16_t, std::uint16_t>;
    case 32:
      return elements<Where, std::uint32_t, std::uint8_t, std::uint32_t, std::uint32_t>;
    case 64:
      return elements<Where, std::uint64_t, std::uint8_t, std::uint64_t, std::uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(where, "Where", 3);

std::optional<std::vector<Dim>> chosen_ints(const InferContext& c) {
  auto condition = c.maybe_ints(0);
  auto x = c.maybe_ints(1);
  auto y = c.maybe_ints(2);
  if (!condition || !x || !y || c.outputs[0].shape->size() > 1) return std::nullopt;
  std::size_t n = c.outputs[0].shape->empty() ? 1 : static_cast<std::size_t>((*c.outputs[0].shape)[0].value());
  auto at = [](const std::vector<Dim>& v, std::size_t i) { return v.size() == 1 ? v[0] : v.at(i); };
  std::vector<Dim> chosen;
  for (std::size_t i = 0; i < n; ++i) {
    Dim which = at(*condition, i);
    if (!which.is_known()) return std::nullopt;
    chosen.push_back(at(which.is(0) ? *y : *x, i));
  }
  return chosen;
}

void infer_where(InferContext& c) {
  c.set_dtype(0, c.dtype(1));
  c.require(c.dtype(2) == c.dtype(1), "element types of X and Y: got ", name_of(c.dtype(1)), " and ",
            name_of(c.dtype(2)), ", expected them to be equal");
  c.set_shape(0, rules::broadcast(c, rules::broadcast(c, c.shape(0), c.shape(1)), c.shape(2)));
  if (auto values = chosen_ints(c)) c.set_ints(0, *std::move(values));
}

Kernel prepare_where(PrepareContext& c) {
  DType type = c.in(1).dtype;
  if (is_tile_type(type)) return prepare_tile(c);
  BroadcastWalk<3> walk({c.in(0).dims, c.in(1).dims, c.in(2).dims}, c.out(0).dims);
  Kernel kernel;
  visit_storage(type, [&]<class T>() {
    kernel = [walk](const KernelArgs& args) {
      const auto* condition = args.in<std::uint8_t>(0);
      const auto* x = args.in<T>(1);
      const auto* y = args.in<T>(2);
      walk.each([=, out = args.out<T>(0)](std::int64_t o, std::array<std::int64_t, 3> i) {
        out[o] = condition[i[0]] != 0 ? x[i[1]] : y[i[2]];
      });
    };
  });
  return kernel;
}

void where_gradient(GradientContext& g) {
  g.set_reduced(1, g.where(g.x(0), g.dy(), g.zero()));
  g.set_reduced(2, g.where(g.x(0), g.zero(), g.dy()));
}

const RegisterPointwise where_op{{.name = "Where",
                                  .since = 16,
                                  .doc = "X where the condition holds, else Y; broadcasting.",
                                  .types = types::boolean,
                                  .infer = infer_where,
                                  .prepare = prepare_where,
                                  .gradient = where_gradient,
                                  .in_place_input = 1},
                                 {.function = &where_tile}};

}  // namespace
}  // namespace backpass
#endif
