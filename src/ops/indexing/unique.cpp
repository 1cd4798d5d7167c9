// Unique: the distinct elements (or slices along an axis) of a tensor.
#include <algorithm>
#include <numeric>
#include <utility>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  for (std::size_t i = 1; i < 4; ++i) c.set_dtype(i, DType::int64);
  std::int64_t sorted = c.node.attr_int("sorted", 1);
  c.require(sorted == 0 || sorted == 1, "sorted: got ", sorted, ", expected 0 or 1");
  std::optional<Dim> most;
  if (c.knows_shape(0)) {
    const Shape& in = c.shape(0);
    most = c.node.has_attribute("axis") ? in[c.axis(c.node.attr_int("axis"), in.size())] : product(in);
  }
  Dim count = c.data_dependent("unique", most);
  c.set_shape(1, {count});
  c.set_shape(3, {count});
  Shape out = c.shape(0);
  if (c.node.has_attribute("axis")) {
    std::size_t axis = c.axis(c.node.attr_int("axis"), out.size());
    c.set_shape(2, {out[axis]});
    out[axis] = count;
    c.set_shape(0, std::move(out));
  } else {
    c.set_shape(2, {product(out)});
    c.set_shape(0, {count});
  }
}

/// Complex numbers are ordered by real part, then by imaginary part.
template <class F>
void visit_ordered(DType dtype, const F& f) {
  switch (dtype) {
    case DType::string:
      return f.template operator()<std::string>();
    case DType::complex64:
      return f.template operator()<std::pair<float, float>>();
    case DType::complex128:
      return f.template operator()<std::pair<double, double>>();
    default:
      visit_numeric(dtype, f);
  }
}

/// -1, 0, 1; NaN comes after every number and equals itself.
template <class T>
int compare(const T& a, const T& b) {
  if (a < b) return -1;
  if (b < a) return 1;
  bool a_is_nan = a != a;  // NOLINT: that is how NaN shows
  bool b_is_nan = b != b;  // NOLINT
  return static_cast<int>(a_is_nan) - static_cast<int>(b_is_nan);
}

/// The input as [outer, extent, inner]; slices along the middle axis are compared.
struct Slices {
  std::int64_t outer = 1, extent = 0, inner = 1;
};

template <class T>
int compare_slices(const Slices& s, const T* data, std::int64_t a, std::int64_t b) {
  for (std::int64_t o = 0; o < s.outer; ++o) {
    const T* base = data + o * s.extent * s.inner;
    for (std::int64_t i = 0; i < s.inner; ++i) {
      if (int order = compare(base[a * s.inner + i], base[b * s.inner + i])) return order;
    }
  }
  return 0;
}

struct Groups {
  std::vector<std::int64_t> first;    ///< smallest index of each group, in output order
  std::vector<std::int64_t> inverse;  ///< group of each slice
  std::vector<std::int64_t> counts;
};

template <class T>
Groups group(const Slices& s, const T* data, bool sorted) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(s.extent));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return compare_slices(s, data, a, b) < 0; });
  Groups g;
  g.inverse.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare_slices(s, data, order[i - 1], order[i]) != 0) {
      g.first.push_back(order[i]);
      g.counts.push_back(0);
    }
    g.inverse[static_cast<std::size_t>(order[i])] = std::ssize(g.first) - 1;
    ++g.counts.back();
  }
  if (sorted) return g;
  // In the order of first occurrence.
  std::vector<std::size_t> by_first(g.first.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::sort(by_first.begin(), by_first.end(), [&](std::size_t a, std::size_t b) { return g.first[a] < g.first[b]; });
  Groups reordered{{}, g.inverse, {}};
  std::vector<std::int64_t> rank(by_first.size());
  for (std::size_t i = 0; i < by_first.size(); ++i) {
    rank[by_first[i]] = static_cast<std::int64_t>(i);
    reordered.first.push_back(g.first[by_first[i]]);
    reordered.counts.push_back(g.counts[by_first[i]]);
  }
  for (std::int64_t& i : reordered.inverse) i = rank[static_cast<std::size_t>(i)];
  return reordered;
}

void compute(ComputeContext& c) {
  Tensor in = c.tensor(0);
  if (!c.node.has_attribute("axis")) in = in.reshaped({in.size()});
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), in.dims().size());
  Dims dims = in.dims();
  Slices s{product(dims, 0, axis), dims[axis], product(dims, axis + 1, dims.size())};
  Groups g;
  visit_ordered(in.dtype(), [&]<class T>() { g = group(s, in.as<T>(), c.node.attr_int("sorted", 1) != 0); });
  dims[axis] = std::ssize(g.first);
  Tensor out(in.dtype(), dims);
  visit_storage(in.dtype(), [&]<class T>() {
    T* to = out.as<T>();
    for (std::int64_t o = 0; o < s.outer; ++o) {
      for (std::int64_t i : g.first) to = std::copy_n(in.as<T>() + (o * s.extent + i) * s.inner, s.inner, to);
    }
  });
  c.outputs[0] = std::move(out);
  if (c.has_output(1)) c.outputs[1] = Tensor::ints(g.first);
  if (c.has_output(2)) c.outputs[2] = Tensor::ints(g.inverse);
  if (c.has_output(3)) c.outputs[3] = Tensor::ints(g.counts);
}

/// Of equal elements the first one counts.
void gradient(GradientContext& g) {
  Value* first = g.node.output(1);
  if (first == nullptr) first = g.b.ops("Unique", g.node.inputs, 2, attributes_of(g.node))[1];
  if (!g.node.has_attribute("axis")) return g.set(0, add_at(g, first, g.dy(), g.x()));
  g.set(0, add_slices_at(g, first, g.dy(), g.x(), g.node.attr_int("axis")));
}

const Register unique{{.name = "Unique",
                       .since = 28,
                       .doc = "Distinct elements (slices along `axis`), where each first occurs, and how often.",
                       .outputs = {1, 4},
                       .types = types::numbers | types::boolean | types::strings | types::complexes,
                       .infer = infer,
                       .compute = compute,
                       .gradient = gradient}};

}  // namespace
}  // namespace backpass
