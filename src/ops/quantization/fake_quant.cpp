// FakeQuant(x, scale, zero_point) -> y, mask: rounds to a quantised grid and back; the mask tells which elements were
// in range. FakeQuantGrad(dy, mask) lets the gradient through where the mask is set.
#include <algorithm>
#include <cmath>

#include "gradient/forward_output.hpp"
#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/read_scalar.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  std::int64_t low = c.node.attr_int("quant_min", 0);
  std::int64_t high = c.node.attr_int("quant_max", 255);
  c.require(low <= high, "quant_min ", low, " is above quant_max ", high);
  c.set_shape(0, c.shape(0));
  c.set_shape(1, c.shape(0));
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  ScalarInput scale_input(c, 1, 1);
  ScalarInput zero_input(c, 2, 0);
  auto low = static_cast<double>(c.node.attr_int("quant_min", 0));
  auto high = static_cast<double>(c.node.attr_int("quant_max", 255));
  bool wants_mask = c.has_output(1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    double scale = scale_input.read(a);
    double zero = zero_input.read(a);
    if (!(scale > 0)) fail(where, " scale: got ", scale, ", expected a positive number");
    visit_real(dtype, [&]<class T>() {
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          double q = zero + std::nearbyint(static_cast<double>(a.in<T>(0)[i]) / scale);
          a.out<T>(0)[i] = static_cast<T>((std::clamp(q, low, high) - zero) * scale);
          if (wants_mask) a.out<bool>(1)[i] = q >= low && q <= high;
        }
      });
    });
  };
}

Value* mask_of(GradientContext& g) { return forward_output(g, 1, Type::tensor(DType::boolean, g.y()->type.shape)); }

/// Straight through: rounding counts as the identity inside the range.
void answer(GradientContext& g, Value* dx) {
  g.set(0, dx);
  g.set_zero(1);
  g.set_zero(2);
}

void gradient(GradientContext& g) { answer(g, g.where(mask_of(g), g.dy(), g.zero())); }

void fused_gradient(GradientContext& g) { answer(g, g.op("FakeQuantGrad", {g.dy(), mask_of(g)}, {}, "com.microsoft")); }

const Register kFakeQuant({.name = "FakeQuant",
                           .domain = "com.microsoft",
                           .doc = "rounding to a quantised grid and back",
                           .inputs = {3, 3},
                           .outputs = {1, 2},
                           .types = types::floats,
                           .infer = infer,
                           .prepare = prepare,
                           .gradient = gradient,
                           .fused_gradient = fused_gradient,
                           .half_through_float = true,
                           .in_place_input = 0});

void infer_gradient(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == DType::boolean, "mask: got ", name_of(c.dtype(1)), ", expected bool");
}

Kernel prepare_gradient(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  c.require(c.in(1).size() == n, "mask: got ", shown(c.in(1).dims), ", expected ", shown(c.in(0).dims));
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) a.out<T>(0)[i] = a.in<bool>(1)[i] ? a.in<T>(0)[i] : T{0};
      });
    });
  };
}

const Register kGradient({.name = "FakeQuantGrad",
                          .domain = "com.microsoft",
                          .doc = "gradient of FakeQuant",
                          .inputs = {2, 2},
                          .types = types::floats,
                          .infer = infer_gradient,
                          .prepare = prepare_gradient,
                          .half_through_float = true,
                          .in_place_input = 0});

}  // namespace
}  // namespace backpass
