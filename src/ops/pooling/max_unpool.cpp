// MaxUnpool: puts each element back where MaxPool found it, zeros elsewhere.
#include <algorithm>
#include <cstring>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/conv.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// Shape of the tensor that MaxPool saw; indices count in it.
Shape pooled_shape(const Node& node, const Shape& x) {
  if (x.size() < 3 || x.size() > kMaxSpatialAxes + 2) {
    fail(node.label(), " input is ", to_string(x), ": expected [batch, channels, spatial...] with 1 to ",
         kMaxSpatialAxes, " spatial axes");
  }
  std::span<const Dim> spatial(x.begin() + 2, x.end());
  std::vector<rules::Window> windows = rules::windows(node, node.attr_ints("kernel_shape"), spatial);
  Shape y{x[0], x[1]};
  for (std::size_t i = 0; i < spatial.size(); ++i) {
    const rules::Window& w = windows[i];
    Dim extent = (spatial[i] - 1) * w.stride + (w.kernel - w.pad_begin - w.pad_end);
    if (extent.is_known() && extent.value() < 0) {
      fail(node.label(), " output extent would be ", extent.str(), ": padding is larger than the output; use less");
    }
    y.push_back(std::move(extent));
  }
  return y;
}

void check_output_shape(const Node& node, const std::vector<std::int64_t>& stated, const Dims& pooled) {
  bool fits = stated.size() == pooled.size();
  for (std::size_t i = 0; fits && i < pooled.size(); ++i) fits = stated[i] >= pooled[i];
  if (!fits) {
    fail(node.label(), " output_shape is ", to_string(stated), ": expected at least ", to_string(pooled),
         ", the shape that kernel, strides and pads give");
  }
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == DType::int64, "indices have element type ", name_of(c.dtype(1)), ": expected int64");
  const Shape& x = c.shape(0);
  Shape pooled = pooled_shape(c.node, x);
  if (c.knows_shape(1)) {
    const Shape& indices = c.shape(1);
    c.require(indices.size() == x.size(), "indices are ", shown(indices), ": expected the shape of the input ",
              shown(x));
    for (std::size_t i = 0; i < x.size(); ++i) c.unify(x[i], indices[i], "extents of input and indices");
  }
  if (!c.has_input(2)) {
    c.set_shape(0, std::move(pooled));
    return;
  }
  c.set_shape(0, Shape(c.ints(2)));
}

/// Copies a block of extents `from` into the first corner of a tensor of extents `to`.
template <class T>
void embed(const T* source, const Dims& from, T* target, const Dims& to) {
  Dims strides = strides_of(to);
  std::int64_t cols = from.back();
  std::int64_t rows = cols == 0 ? 0 : element_count(from) / cols;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t at = 0;
    std::int64_t rest = r;
    for (std::size_t axis = from.size() - 1; axis-- > 0; rest /= from[axis]) at += rest % from[axis] * strides[axis];
    std::copy_n(source + r * cols, cols, target + at);
  }
}

void compute(ComputeContext& c) {
  const Tensor& x = c.tensor(0);
  const Tensor& indices = c.tensor(1);
  Dims pooled = to_dims(pooled_shape(c.node, to_shape(x.dims())));
  c.require(indices.dims() == x.dims(), "indices are ", shown(indices.dims()), ": expected the shape of the input ",
            shown(x.dims()));
  Dims out = pooled;
  if (c.has_input(2)) {
    out = c.tensor(2).to_ints();
    check_output_shape(c.node, out, pooled);
  }
  Tensor y(x.dtype(), pooled);
  std::memset(y.mutable_data(), 0, y.bytes());
  const auto* at = indices.as<std::int64_t>();
  visit_storage(x.dtype(), [&]<class T>() {
    if constexpr (std::is_trivially_copyable_v<T>) {
      for (std::int64_t i = 0; i < x.size(); ++i) {
        c.require(at[i] >= 0 && at[i] < y.size(), "index ", at[i], " at position ", i, ": expected [0, ", y.size(),
                  ")");
        y.as<T>()[at[i]] = x.as<T>()[i];
      }
      if (out != pooled) {
        Tensor larger(x.dtype(), out);
        std::memset(larger.mutable_data(), 0, larger.bytes());
        embed(y.as<T>(), pooled, larger.as<T>(), out);
        y = larger;
      }
    }
  });
  c.outputs[0] = std::move(y);
}

/// Each element fetches the gradient from where it was put; indices count in the shape without output_shape.
void gradient(GradientContext& g) {
  Value* dy = g.dy();
  if (g.has_input(2)) {
    Shape pooled = pooled_shape(g.node, Shape(static_cast<std::size_t>(g.rank(g.x())), Dim(1)));
    std::vector<std::int64_t> first = to_dims(pooled);  // extents for an input of extents 1
    std::vector<std::int64_t> strides = g.node.attr_ints("strides");
    strides.resize(first.size() - 2, 1);
    strides.insert(strides.begin(), 2, 1);
    Value* steps = g.mul(g.sub(g.shape_of(g.x()), g.b.integer(1)), g.b.ints(std::move(strides)));
    Value* ends = g.add(steps, g.b.ints(first));
    dy = g.op("Slice", {dy, g.b.ints(std::vector<std::int64_t>(first.size(), 0)), ends});
  }
  Value* fetched = g.gather(g.reshape(dy, {-1}), g.reshape(g.x(1), {-1}), 0);
  g.set(0, g.reshape_like(fetched, g.x()));
}

const Register max_unpool{{.name = "MaxUnpool",
                           .since = 22,
                           .doc = "puts pooled elements back to their positions, zeros elsewhere",
                           .inputs = {2, 3},
                           .types = types::floats,
                           .infer = infer,
                           .compute = compute,
                           .gradient = gradient}};

}  // namespace
}  // namespace backpass
