#include "ops/optimizers/clip_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reduce.hpp"
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

double clip_factor(std::span<const Tensor> gradients, double max_norm) {
  constexpr double kEpsilon = 1e-6;
  double sum = 0;
  for (const Tensor& g : gradients) sum += sum_of_squares(g);
  return std::min(1.0, max_norm / (std::sqrt(sum) + kEpsilon));
}

}  // namespace backpass
