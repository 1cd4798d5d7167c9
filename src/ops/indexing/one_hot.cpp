// OneHot: an axis that is `on` at the index and `off` elsewhere.
#include <algorithm>
#include <cmath>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kNoIndex = -1;

std::size_t new_axis(const Node& node, std::size_t rank) {
  auto r = static_cast<std::int64_t>(rank);
  std::int64_t axis = node.attr_int("axis", -1);
  if (axis < -r - 1 || axis > r) fail(node.label(), " axis: got ", axis, ", expected one in [", -r - 1, ", ", r, "]");
  return static_cast<std::size_t>(axis < 0 ? axis + r + 1 : axis);
}

Dim depth_of(InferContext& c) {
  c.require(types::numbers.has(c.dtype(1)), "depth: got ", shown(c.type(1)), ", expected a number");
  if (auto values = c.maybe_ints(1)) {
    c.require(values->size() == 1, "depth: got ", values->size(), " numbers, expected one");
    return (*values)[0];
  }
  const Tensor* depth = c.constant(1);
  if (depth == nullptr) return c.data_dependent("depth");
  c.require(depth->size() == 1, "depth: got ", depth->size(), " numbers, expected one");
  double value = depth->to_doubles()[0];
  c.require(value >= 0 && value < 0x1p62, "depth: got ", value, ", expected a number of classes");
  return static_cast<std::int64_t>(value);
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(2));
  if (c.knows_shape(2)) {
    const Shape& values = c.shape(2);
    c.require(values.size() == 1 && (values[0].is(2) || !values[0].is_known()), "values: got ", shown(values),
              ", expected two elements: off and on");
  }
  Shape out = c.shape(0);
  std::size_t axis = new_axis(c.node, out.size());
  Dim depth = depth_of(c);
  c.require(!depth.is_known() || depth.value() > 0, "depth: got ", shown(depth), ", expected more than 0");
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis), depth);
  c.set_shape(0, std::move(out));
}

/// The class an index names, or kNoIndex when it is outside [-depth, depth).
template <class I>
std::int64_t class_of(I index, std::int64_t depth) {
  std::int64_t i = 0;
  if constexpr (std::is_integral_v<I>) {
    if (std::is_unsigned_v<I> && static_cast<std::uint64_t>(index) >= static_cast<std::uint64_t>(depth))
      return kNoIndex;
    i = static_cast<std::int64_t>(index);
  } else {
    auto wide = static_cast<double>(static_cast<float>(index));
    if constexpr (std::is_same_v<I, double>) wide = index;
    if (!(std::abs(wide) < 0x1p62)) return kNoIndex;
    i = static_cast<std::int64_t>(wide);
  }
  if (i < 0) i += depth;
  return i >= 0 && i < depth ? i : kNoIndex;
}

struct Layout {
  std::int64_t outer, depth, inner;
};

template <class T>
void fill(const Layout& layout, const std::int64_t* classes, const T& off, const T& on, T* out) {
  std::int64_t block = layout.depth * layout.inner;
  parallel_for(layout.outer, grain_for(block), [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin * block, out + end * block, off);
    for (std::int64_t o = begin; o < end; ++o) {
      for (std::int64_t j = 0; j < layout.inner; ++j) {
        std::int64_t k = classes[o * layout.inner + j];
        if (k != kNoIndex) out[o * block + k * layout.inner + j] = on;
      }
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  std::size_t axis = new_axis(c.node, in.size());
  Layout layout{product(in, 0, axis), c.out(0).dims[axis], product(in, axis, in.size())};
  DType index_type = c.in(0).dtype;
  DType dtype = c.out(0).dtype;
  std::int64_t count = c.in(0).size();
  std::size_t scratch = c.reserve(byte_size(DType::int64, count));
  c.require(c.in(2).size() == 2, "values: got ", c.in(2).size(), " elements, expected two: off and on");
  return [=](const KernelArgs& args) {
    auto* classes = reinterpret_cast<std::int64_t*>(args.scratch + scratch);
    visit_numeric(index_type, [&]<class I>() {
      const I* indices = args.in<I>(0);
      std::transform(indices, indices + count, classes, [&](I i) { return class_of(i, layout.depth); });
    });
    visit_storage(dtype, [&]<class T>() { fill(layout, classes, args.in<T>(2)[0], args.in<T>(2)[1], args.out<T>(0)); });
  };
}

void gradient(GradientContext& g) {
  Value* values = g.concat({g.reshape(g.zero(g.dy()), {1}), g.reshape(g.one(g.dy()), {1})}, 0);
  Value* on = g.cast(g.op("OneHot", {g.x(), g.x(1), values}, attributes_of(g.node)), DType::boolean);
  Value* zero = g.zero(g.dy());
  auto sum = [&](Value* v) { return g.reshape(g.op("ReduceSum", {v}, {{"keepdims", std::int64_t{0}}}), {1}); };
  g.set(2, g.concat({sum(g.where(on, zero, g.dy())), sum(g.where(on, g.dy(), zero))}, 0));
  g.set_zero(0);
  g.set_zero(1);
}

const Register one_hot{{.name = "OneHot",
                        .since = 28,
                        .doc = "A new axis that holds `on` at the index and `off` elsewhere.",
                        .inputs = {3, 3},
                        .types = types::numbers,
                        .infer = infer,
                        .prepare = prepare,
                        .gradient = gradient}};

}  // namespace
}  // namespace backpass
