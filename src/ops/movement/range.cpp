// Range: numbers from start up to a limit in equal steps.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kMaxTracked = 1024;

void check_inputs(const InferContext& c) {
  for (std::size_t i = 0; i < 3; ++i) {
    movement::require_same_dtype(c, 0, i);
    if (!c.knows_shape(i)) continue;
    Dim count = product(c.shape(i));
    c.require(count.is(1) || !count.is_known(), "input ", i, ": got ", shown(c.shape(i)), ", expected one number");
  }
}

/// How many numbers, when all three are known; negative when they are not.
std::int64_t known_count(const InferContext& c) {
  if (c.constant(0) == nullptr || c.constant(1) == nullptr || c.constant(2) == nullptr) return -1;
  if (is_integer(c.dtype(0))) return -1;  // exact arithmetic on extents does these
  double start = c.constant(0)->to_doubles().at(0);
  double limit = c.constant(1)->to_doubles().at(0);
  double delta = c.constant(2)->to_doubles().at(0);
  c.require(delta != 0, "delta: got 0, expected a step that moves");
  double count = std::ceil((limit - start) / delta);
  c.require(count < 0x1p48, "got ", count, " numbers from ", start, " to ", limit, " by ", delta);
  return count > 0 ? static_cast<std::int64_t>(count) : 0;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  check_inputs(c);
  if (std::int64_t count = known_count(c); count >= 0) return c.set_shape(0, {count});
  auto start = c.maybe_ints(0);
  auto limit = c.maybe_ints(1);
  auto delta = c.maybe_ints(2);
  if (!start || !limit || !delta || !(*delta)[0].is_known()) return c.set_shape(0, {c.data_dependent("range")});
  std::int64_t step = (*delta)[0].value();
  c.require(step != 0, "delta: got 0, expected a step that moves");
  Dim distance = step > 0 ? (*limit)[0] - (*start)[0] : (*start)[0] - (*limit)[0];
  c.require(step != std::numeric_limits<std::int64_t>::min(), "delta: got ", step);
  Dim count = max(ceil_div(distance, std::abs(step)), 0);
  c.set_shape(0, {count});
  if (!count.is_known() || count.value() > kMaxTracked) return;
  std::vector<Dim> values;
  for (std::int64_t i = 0; i < count.value(); ++i) values.push_back((*start)[0] + Dim(step) * Dim(i));
  movement::set_ints(c, 0, std::move(values));
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.out(0).dtype;
  std::int64_t count = c.out(0).size();
  return [=](const KernelArgs& args) {
    visit_real_or_integer(dtype, [&]<class T>() {
      using Wide = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
      auto start = static_cast<Wide>(*args.in<T>(0));
      auto delta = static_cast<Wide>(*args.in<T>(2));
      T* out = args.out<T>(0);
      parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(start + static_cast<Wide>(i) * delta);
      });
    });
  };
}

/// Number i is start + i delta; the limit only says how many there are.
void gradient(GradientContext& g) {
  auto total = [&](Value* a) { return g.op("ReduceSum", {a}, {{"keepdims", std::int64_t{0}}}); };
  Value* index = g.op("Range", {g.b.integer(0), g.extent(g.y(), 0), g.b.integer(1)});
  g.set(0, g.reshape_like(total(g.dy()), g.x(0)));
  g.set_zero(1);
  g.set(2, g.reshape_like(total(g.mul(g.dy(), g.cast_like(index, g.dy()))), g.x(2)));
}

const Register range{{.name = "Range",
                      .since = 27,
                      .doc = "Numbers from start up to (not including) limit in steps of delta.",
                      .inputs = {3, 3},
                      .types = types::floats | DTypeSet{DType::int16, DType::int32, DType::int64},
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = gradient,
                      .half_through_float = true}};

}  // namespace
}  // namespace backpass
