// Gradients of GridSample with respect to X and the grid, each optional. Inputs dY, X, grid.
#include "graph/op.hpp"
#include "ops/image/grid_sampler.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using namespace grid_sample;

enum Input : std::size_t { kDy, kX, kGrid };

void infer(InferContext& c) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (c.has_output(i)) c.set_type(i, c.type(i + 1));
  }
}

/// One image: what each point of the grid read from receives its share, in the order of the points.
template <class T, class G>
void backward(const Layout& l, const Sampler<G>& sampler, const T* dy, const T* x, const G* grid, T* dx, G* dgrid) {
  const std::size_t taps = sampler.taps();
  const auto rank = static_cast<std::size_t>(l.rank);
  std::vector<std::int64_t> index(taps);
  std::vector<G> weight(taps);
  std::vector<G> slope(taps * rank);
  std::vector<double> along(rank);
  if (dx != nullptr) std::fill_n(dx, l.channels * l.plane, T(0));
  for (std::int64_t p = 0; p < l.points; ++p) {
    sampler.find_slopes(grid + p * l.rank, index.data(), weight.data(), slope.data());
    std::fill(along.begin(), along.end(), 0.0);
    for (std::int64_t c = 0; c < l.channels; ++c) {
      const T share = dy[c * l.points + p];
      for (std::size_t t = 0; t < taps; ++t) {
        if (index[t] < 0) continue;
        const std::int64_t at = c * l.plane + index[t];
        if (dx != nullptr) dx[at] += static_cast<T>(weight[t]) * share;
        const double product = static_cast<double>(share) * static_cast<double>(x[at]);
        for (std::size_t a = 0; a < rank; ++a) along[a] += product * static_cast<double>(slope[a * taps + t]);
      }
    }
    if (dgrid == nullptr) continue;
    for (std::size_t a = 0; a < rank; ++a)
      dgrid[p * l.rank + l.rank - 1 - static_cast<std::int64_t>(a)] = static_cast<G>(along[a]);
  }
}

Kernel prepare(PrepareContext& c) {
  const auto [l, axes] = layout_of(c.in(kX).dims, c.in(kDy).dims);
  c.require(l.plane > 0 || l.batch * l.channels * l.points == 0, "X: got no elements to sample, expected some");
  const Options options = options_of(c.node);
  const bool has_dx = c.has_output(0);
  const bool has_dgrid = c.has_output(1);
  return [=, l = l, axes = axes, dtype = c.in(kX).dtype, grid_type = c.in(kGrid).dtype](const KernelArgs& args) {
    visit_real(grid_type, [&]<class G>() {
      const Sampler<G> sampler(options, axes);
      visit_real(dtype, [&]<class T>() {
        parallel_for(l.batch, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t n = begin; n < end; ++n) {
            const std::int64_t image = n * l.channels * l.plane;
            const std::int64_t points = n * l.points * l.rank;
            backward<T, G>(l, sampler, args.in<T>(kDy) + n * l.channels * l.points, args.in<T>(kX) + image,
                           args.in<G>(kGrid) + points, has_dx ? args.out<T>(0) + image : nullptr,
                           has_dgrid ? args.out<G>(1) + points : nullptr);
          }
        });
      });
    });
  };
}

const Register grid_sample_grad{{.name = "GridSampleGrad",
                                 .domain = "backpass",
                                 .doc = "gradients of GridSample with respect to the tensor and the grid",
                                 .inputs = {3, 3},
                                 .outputs = {1, 2},
                                 .types = types::floats,
                                 .infer = infer,
                                 .prepare = prepare,
                                 .half_through_float = true}};

}  // namespace
}  // namespace backpass
