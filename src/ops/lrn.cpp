// LRN: division by a power of the squares summed over neighbouring channels.
#include <algorithm>
#include <cmath>

#include "ops/op.hpp"
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

const Register kOp({.name = "LRN",
                    .since = 13,
                    .doc = "local response normalisation across channels",
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .half_through_float = true});

}  // namespace
}  // namespace backpass
