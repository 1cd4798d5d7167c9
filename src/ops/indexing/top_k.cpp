// TopK: the largest or smallest elements along an axis, and where they are.
#include <algorithm>
#include <numeric>
#include <vector>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::int64);
  c.require(c.dtype(1) == DType::int64, "K: got ", name_of(c.dtype(1)), ", expected int64");
  Shape out = c.shape(0);
  std::size_t axis = c.axis(c.node.attr_int("axis", -1), out.size());
  Dim k = c.data_dependent("k");
  if (auto values = movement::index_list(c, 1, "K")) {
    c.require(values->size() == 1, "K: got ", values->size(), " numbers, expected one");
    k = (*values)[0];
  }
  c.require(!k.is_known() || k.value() >= 0, "K: got ", shown(k), ", expected no less than 0");
  c.require(!k.is_known() || !out[axis].is_known() || k.value() <= out[axis].value(), "K: got ", shown(k),
            ", expected no more than ", shown(out[axis]), ", the extent of the axis");
  out[axis] = k;
  c.set_shape(0, out);
  c.set_shape(1, std::move(out));
}

/// NaN counts as larger than every number; equal elements keep their order.
template <class T>
bool before(T a, T b, bool largest) {
  if constexpr (!std::is_integral_v<T>) {
    bool a_is_nan = a != a;  // NOLINT: that is how NaN shows
    bool b_is_nan = b != b;  // NOLINT
    if (a_is_nan || b_is_nan) return a_is_nan != b_is_nan && a_is_nan == largest;
  }
  return largest ? a > b : a < b;
}

struct Line {
  std::int64_t extent, stride, k;
  bool largest;
};

template <class T>
void select_line(const Line& line, const T* in, T* values, std::int64_t* indices, std::vector<std::int64_t>& order) {
  order.resize(static_cast<std::size_t>(line.extent));
  std::iota(order.begin(), order.end(), 0);
  auto less = [&](std::int64_t a, std::int64_t b) {
    T x = in[a * line.stride];
    T y = in[b * line.stride];
    if (before(x, y, line.largest)) return true;
    return !before(y, x, line.largest) && a < b;
  };
  auto middle = order.begin() + line.k;
  if (line.k < line.extent) std::nth_element(order.begin(), middle, order.end(), less);
  std::sort(order.begin(), middle, less);
  for (std::int64_t i = 0; i < line.k; ++i) {
    std::int64_t index = order[static_cast<std::size_t>(i)];
    if (values != nullptr) values[i * line.stride] = in[index * line.stride];
    if (indices != nullptr) indices[i * line.stride] = index;
  }
}

Kernel prepare(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  DType dtype = c.in(0).dtype;
  std::size_t axis = c.axis(c.node.attr_int("axis", -1), in.size());
  const Dims& out = c.has_output(0) ? c.out(0).dims : c.out(1).dims;
  Line line{in[axis], product(in, axis + 1, in.size()), out[axis], c.node.attr_int("largest", 1) != 0};
  std::int64_t lines = product(in, 0, axis) * line.stride;
  c.require(line.k <= line.extent, "K: got ", line.k, ", expected no more than ", line.extent);
  return [=](const KernelArgs& args) {
    visit_numeric(dtype, [&]<class T>() {
      parallel_for(lines, grain_for(8 * line.extent), [&](std::int64_t begin, std::int64_t end) {
        static thread_local std::vector<std::int64_t> order;
        for (std::int64_t l = begin; l < end; ++l) {
          std::int64_t outer = l / line.stride;
          std::int64_t inner = l % line.stride;
          std::int64_t to = outer * line.k * line.stride + inner;
          select_line(line, args.in<T>(0) + outer * line.extent * line.stride + inner,
                      args.outputs[0] == nullptr ? nullptr : args.out<T>(0) + to,
                      args.outputs[1] == nullptr ? nullptr : args.out<std::int64_t>(1) + to, order);
        }
      });
    });
  };
}

Value* indices(GradientContext& g) {
  if (g.node.output(1) != nullptr) return g.y(1);
  return g.b.ops("TopK", g.node.inputs, 2, attributes_of(g.node))[1];
}

void gradient(GradientContext& g) {
  g.set(0, g.op("ScatterElements", {g.zeros_like(g.x()), indices(g), g.dy()}, {{"axis", g.node.attr_int("axis", -1)}}));
}

void fused_gradient(GradientContext& g) {
  g.set(0, g.op("GatherElementsGrad", {g.dy(), g.shape_of(g.x()), indices(g)}, {{"axis", g.node.attr_int("axis", -1)}},
                "com.microsoft"));
}

const Register top_k{{.name = "TopK",
                      .since = 24,
                      .doc = "The k largest or smallest elements along `axis`, sorted, and their indices.",
                      .inputs = {2, 2},
                      .outputs = {2, 2},
                      .types = types::numbers,
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = gradient,
                      .fused_gradient = fused_gradient}};

/// K was an attribute.
void lift_10(Builder& b, Node& node) {
  if (!node.has_attribute("k")) return;
  node.attributes["k"] = std::vector<std::int64_t>{node.attr_int("k")};
  movement::ints_attribute_to_input(b, node, "k", 1);
}
const RegisterAdapter top_k_10{{.op = "TopK", .below = 10, .lift = lift_10}};

}  // namespace
}  // namespace backpass
