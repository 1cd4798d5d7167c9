#include "ops/optimizers/clip_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reduce.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

double sum_of_squares(const Tensor& t) {
  Reduction plan = plan_reduction(Dims{t.size()}, {true}, Fold::sum_square, Finish::none);
  std::vector<std::byte> scratch(plan.scratch_bytes());
  double sum = 0;
  visit_real(t.dtype(), [&]<class T>() {
    T square = 0;
    reduce(plan, t.dtype(), t.data(), nullptr, &square, scratch.data());
    sum = static_cast<double>(square);
  });
  return sum;
}

}  // namespace

double clip_factor(std::span<const Tensor> gradients, double max_norm, double scale) {
  double sum = 0;
  for (const Tensor& g : gradients) sum += sum_of_squares(g);
  return clip_factor(std::sqrt(sum) * scale, max_norm);
}

double clip_factor(double norm, double max_norm) {
  constexpr double kEpsilon = 1e-6;
  return std::min(1.0, max_norm / (norm + kEpsilon));
}

void scale_in_place(std::span<const Tensor> gradients, double factor) {
  if (factor == 1) return;
  for (Tensor g : gradients) {
    visit_real(g.dtype(), [&]<class T>() {
      T* values = g.as<T>();
      parallel_for(g.size(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) values[i] *= static_cast<T>(factor);
      });
    });
  }
}

}  // namespace backpass
