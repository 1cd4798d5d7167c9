// ScaleGradient(x, factor): what flows back through a loss whose gradients are known already.
#include <algorithm>
#include <cmath>

#include "graph/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "factor: got ", name_of(c.dtype(1)), ", expected ", name_of(c.dtype(0)));
  rules::same_as_input(c);
}

Kernel prepare(PrepareContext& c) {
  const DType dtype = c.in(0).dtype;
  const std::int64_t count = c.in(0).size();
  c.require(c.in(1).size() == 1, "factor: got shape ", shown(c.in(1).dims), ", expected one element");
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      const T* x = a.in<T>(0);
      T* y = a.out<T>(0);
      T factor = *a.in<T>(1);
      // Where no row counts, gradients are 0 whatever flows back; the loss itself is not a number then.
      if (!std::isfinite(factor) && std::all_of(x, x + count, [](T v) { return v == T{0}; })) factor = T{1};
      if (x == y && factor == T{1}) return;
      parallel_for(count, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] * factor;
      });
    });
  };
}

const Register kOp({.name = "ScaleGradient",
                    .domain = "backpass",
                    .doc = "a tensor times a number",
                    .inputs = {2, 2},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .half_through_float = true,
                    .in_place_input = 0});

}  // namespace
}  // namespace backpass
