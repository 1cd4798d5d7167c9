// Batch normalisation in two steps: BatchNormFactors turns statistics and parameters into a factor and an offset per
// channel, MulAdd applies them, element by element.
#include "graph/op.hpp"
#include "ops/normalization/batch_norm.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"
#include "support/visit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/normalization/batch_norm_factors.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct MulAdd {
  template <class D, class V>
  static HWY_INLINE V call(D, V x, V factor, V offset, const TileParams&) {
    return hn::MulAdd(x, factor, offset);
  }
};

TileLoop mul_add(DType t) { return vector_loop<MulAdd, 3>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(mul_add, "MulAdd", 3);

const RegisterPointwise mul_add_op{{.name = "MulAdd",
                                    .domain = "backpass",
                                    .doc = "X * factor + offset, rounded once where the processor can.",
                                    .inputs = {3, 3},
                                    .types = types::floats},
                                   {.function = &mul_add_tile}};

constexpr std::int64_t kMostAxes = 64;

/// Shapes broadcast against [batch, channels, ...] of that rank.
void infer(InferContext& c) {
  for (std::size_t k : {0, 1}) c.set_dtype(k, c.dtype(0));
  const std::int64_t rank = c.node.attr_int("rank");
  c.require(rank >= 2 && rank <= kMostAxes, "rank: got ", rank, ", expected one in [2, ", kMostAxes, "]");
  for (std::size_t i = 0; i < 4; ++i) {
    c.require(c.dtype(i) == c.dtype(0), "input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(0)));
    c.require(c.rank(i) == 1, "input ", i, ": got shape ", shown(c.shape(i)), ", expected one number per channel");
  }
  Dim channels = c.shape(0)[0];
  for (std::size_t i = 1; i < 4; ++i) channels = c.unify(channels, c.shape(i)[0], "channels");
  Shape shape(static_cast<std::size_t>(rank) - 1, Dim(1));
  shape[0] = channels;
  for (std::size_t k : {0, 1}) c.set_shape(k, shape);
}

Kernel prepare(PrepareContext& c) {
  const DType dtype = c.in(0).dtype;
  const std::int64_t channels = c.in(0).size();
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      std::copy_n(a.in<T>(0), channels, a.out<T>(0));
      std::copy_n(a.in<T>(1), channels, a.out<T>(1));
      fold_batch_norm(a.out<T>(0), a.out<T>(1), a.in<T>(2), a.in<T>(3), channels);
    });
  };
}

const Register kFactors({.name = "BatchNormFactors",
                         .domain = "backpass",
                         .doc = "factor and offset per channel from scale, bias, mean and inverse deviation",
                         .inputs = {4, 4},
                         .outputs = {2, 2},
                         .types = types::reals,
                         .infer = infer,
                         .prepare = prepare,
                         .is_one_pass = true});

}  // namespace
}  // namespace backpass
#endif
