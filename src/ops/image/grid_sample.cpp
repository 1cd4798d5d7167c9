// GridSample: reads a tensor at the places a grid of coordinates names.
#include <algorithm>
#include <string>
#include <vector>

#include "gradient/fused.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/image/grid_sample_rule.hpp"
#include "ops/image/grid_sampler.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using namespace grid_sample;

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Options options = options_of(c.node);
  if (options.mode != Mode::nearest && !is_float(c.dtype(0)))
    fail<Unsupported>(c.node.label(), " mode ", c.node.attr_string("mode", "linear"), " for ", name_of(c.dtype(0)),
                      ": expected a floating-point type");
  c.require(is_float(c.dtype(1)), "element type of grid: got ", name_of(c.dtype(1)),
            ", expected a floating-point type");
  const Shape &x = c.shape(0), &grid = c.shape(1);
  c.require(x.size() >= 3, "rank of X: got ", x.size(), ", expected at least 3");
  c.require(grid.size() == x.size(), "rank of grid: got ", grid.size(), ", expected ", x.size(), " as X");
  c.unify(grid.back(), static_cast<std::int64_t>(x.size()) - 2, "last extent of grid");
  Shape out{c.unify(x[0], grid[0], "batch of X and grid"), x[1]};
  out.insert(out.end(), grid.begin() + 1, grid.end() - 1);
  c.set_shape(0, std::move(out));
}

// Points are found once per block and used for all channels.
template <class T, class G>
void sample(const Layout& l, const Sampler<G>& sampler, const T* x, const G* grid, T* y) {
  constexpr std::int64_t kPoints = 128;
  const std::int64_t blocks = (l.points + kPoints - 1) / kPoints;
  const std::size_t taps = sampler.taps();
  const std::int64_t work = kPoints * static_cast<std::int64_t>(taps) * (l.channels + 4);
  parallel_for(l.batch * blocks, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> index(kPoints * taps);
    std::vector<G> weight(kPoints * taps);
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t n = block / blocks;
      const std::int64_t first = block % blocks * kPoints;
      const std::int64_t count = std::min(kPoints, l.points - first);
      for (std::int64_t p = 0; p < count; ++p) {
        const auto at = static_cast<std::size_t>(p) * taps;
        sampler.find(grid + (n * l.points + first + p) * l.rank, index.data() + at, weight.data() + at);
      }
      for (std::int64_t ch = 0; ch < l.channels; ++ch) {
        const T* from = x + (n * l.channels + ch) * l.plane;
        T* to = y + (n * l.channels + ch) * l.points + first;
        for (std::int64_t p = 0; p < count; ++p) {
          const auto at = static_cast<std::size_t>(p) * taps;
          if constexpr (!std::is_floating_point_v<T>) {
            to[p] = index[at] < 0 ? T{} : from[index[at]];
          } else {
            T sum = 0;
            for (std::size_t t = at; t < at + taps; ++t)
              if (index[t] >= 0) sum += static_cast<T>(weight[t]) * from[index[t]];
            to[p] = sum;
          }
        }
      }
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const auto [l, axes] = layout_of(c.in(0).dims, c.out(0).dims);
  c.require(l.plane > 0 || l.batch * l.channels * l.points == 0, "X: got no elements to sample, expected some");
  const Options options = options_of(c.node);
  const bool moves = options.mode == Mode::nearest && !is_float(c.in(0).dtype);
  return
      [l = l, axes = axes, options, moves, dtype = c.in(0).dtype, grid_type = c.in(1).dtype](const KernelArgs& args) {
        if (l.batch * l.channels * l.points == 0) return;
        visit_real(grid_type, [&]<class G>() {
          const Sampler<G> sampler(options, axes);
          auto run = [&]<class T>() { sample<T, G>(l, sampler, args.in<T>(0), args.in<G>(1), args.out<T>(0)); };
          moves ? visit_storage(dtype, run) : visit_real(dtype, run);
        });
      };
}

void fused_gradient(GradientContext& g) { set_by_fused(g, "GridSampleGrad", {g.dy(), g.x(0), g.x(1)}, 2, "backpass"); }

const Register grid_sample_op{{.name = "GridSample",
                               .since = 22,
                               .doc = "Reads a tensor at the places a grid of coordinates names.",
                               .inputs = {2, 2},
                               .types = types::movable,
                               .infer = infer,
                               .prepare = prepare,
                               .gradient = grid_sample_gradient,
                               .fused_gradient = fused_gradient,
                               .half_through_float = true}};

// Before opset 20 the modes were named for two dimensions.
void lift_before_20(Builder&, Node& node) {
  const std::string mode = node.attr_string("mode", "bilinear");
  if (mode == "bilinear") node.attributes.insert_or_assign("mode", std::string("linear"));
  if (mode == "bicubic") node.attributes.insert_or_assign("mode", std::string("cubic"));
}
const RegisterAdapter grid_sample_20{{.op = "GridSample", .below = 20, .lift = lift_before_20}};

}  // namespace
}  // namespace backpass
