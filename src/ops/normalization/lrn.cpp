// LRN: division by a power of the squares summed over neighbouring channels.
#include <algorithm>
#include <cmath>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.node.attr_int("size") > 0, "size: got ", c.node.attr_int("size"), ", expected a positive number");
  c.require(c.rank(0) >= 2, "input: got rank ", c.rank(0), ", expected [batch, channels, ...]");
}

Kernel prepare(PrepareContext& c) {
  constexpr std::int64_t kWorkPerElement = 32;
  DType dtype = c.in(0).dtype;
  const Dims& dims = c.in(0).dims;
  std::int64_t channels = dims[1];
  std::int64_t area = product(dims, 2, dims.size());
  std::int64_t planes = dims[0] * channels;
  std::int64_t size = c.node.attr_int("size");
  double bias = c.node.attr_float("bias", 1.0F);
  double beta = c.node.attr_float("beta", 0.75F);
  double alpha = static_cast<double>(c.node.attr_float("alpha", 1e-4F)) / static_cast<double>(size);
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      parallel_for(planes, grain_for(area * kWorkPerElement), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
          std::int64_t channel = plane % channels;
          std::int64_t first = std::max<std::int64_t>(0, channel - (size - 1) / 2);
          std::int64_t last = std::min(channels, channel + size / 2 + 1);
          const T* image = a.in<T>(0) + (plane - channel) * area;
          for (std::int64_t i = 0; i < area; ++i) {
            double sum = 0;
            for (std::int64_t k = first; k < last; ++k) {
              auto v = static_cast<double>(image[k * area + i]);
              sum += v * v;
            }
            double x = static_cast<double>(image[channel * area + i]);
            a.out<T>(0)[plane * area + i] = static_cast<T>(x / std::pow(bias + alpha * sum, beta));
          }
        }
      });
    });
  };
}

/// 1 where the window of channel i (rows) covers channel j (columns), else 0.
Value* window_matrix(GradientContext& g, std::int64_t size) {
  Value* j = g.op("Range", {g.b.integer(0), g.extent(g.x(), 1), g.b.integer(1)});
  Value* distance = g.sub(j, g.unsqueeze(j, {1}));
  Value* is_covered = g.op("And", {g.op("GreaterOrEqual", {distance, g.b.integer(-((size - 1) / 2))}),
                                   g.op("LessOrEqual", {distance, g.b.integer(size / 2)})});
  return g.cast_like(is_covered, g.x());
}

/// With D = bias + alpha/size * (sum of x^2 over the window) and y = x D^-beta:
/// dx = dy D^-beta - 2 alpha beta / size * x * (sum of dy x D^(-beta-1) over the windows that cover x).
void gradient(GradientContext& g) {
  const std::int64_t size = g.node.attr_int("size");
  const double beta = g.node.attr_float("beta", 0.75F);
  const double alpha = static_cast<double>(g.node.attr_float("alpha", 1e-4F)) / static_cast<double>(size);
  Value* windows = window_matrix(g, size);
  Value* x = g.x();
  Value* squares = g.op("Einsum", {windows, g.square(x)}, {{"equation", std::string("ij,nj...->ni...")}});
  Value* base = g.add(g.mul(squares, g.number(alpha, x)), g.number(g.node.attr_float("bias", 1.0F), x));
  Value* direct = g.mul(g.dy(), g.op("Pow", {base, g.number(-beta, x)}));
  Value* pull =
      g.op("Einsum", {windows, g.div(g.mul(direct, x), base)}, {{"equation", std::string("ij,ni...->nj...")}});
  g.set(0, g.sub(direct, g.mul(g.mul(x, g.number(2 * alpha * beta, x)), pull)));
}

const Register kOp({.name = "LRN",
                    .since = 13,
                    .doc = "local response normalisation across channels",
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = gradient,
                    .half_through_float = true});

}  // namespace
}  // namespace backpass
