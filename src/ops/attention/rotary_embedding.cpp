// RotaryEmbedding: rotates pairs of features by angles that grow with the position.
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "gradient/composite.hpp"
#include "graph/op.hpp"
#include "ops/attention/attention_parts.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kCos, kSin, kPositions };

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kX));
  for (std::size_t i : {kCos, kSin})
    c.require(c.dtype(i) == c.dtype(kX), "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(c.dtype(kX)), " as X");
  if (c.has_input(kPositions))
    c.require(c.dtype(kPositions) == DType::int64, "element type of position_ids: got ", name_of(c.dtype(kPositions)),
              ", expected int64");
  const Shape& x = c.shape(kX);
  c.require(x.size() == 3 || x.size() == 4, "rank of X: got ", x.size(), ", expected 3 or 4");
  c.set_shape(0, x);
  const std::int64_t heads = c.node.attr_int("num_heads", 0);
  c.require(x.size() == 4 || heads > 0, "attribute 'num_heads': got ", heads,
            ", expected a positive number with a 3-D X");
  if (x.size() == 3 && x[2].is_known())
    c.require(x[2].value() % heads == 0, "extent of X: got ", shown(x[2]), ", expected a multiple of num_heads ",
              heads);
  const Dim head_size = x.size() == 4 ? x[3] : floor_div(x[2], heads);
  const std::int64_t part = c.node.attr_int("rotary_embedding_dim", 0);
  c.require(part >= 0 && part % 2 == 0 && (!head_size.is_known() || part <= head_size.value()),
            "attribute 'rotary_embedding_dim': got ", part, ", expected an even number up to ", shown(head_size));
  const Dim rotated = part == 0 ? head_size : Dim(part);
  c.require(!rotated.is_known() || rotated.value() % 2 == 0, "head size: got ", shown(rotated),
            ", expected an even number");
  const Dim half = floor_div(rotated, 2);
  const Dim& length = x.size() == 4 ? x[2] : x[1];
  const std::size_t rank = c.has_input(kPositions) ? 2 : 3;
  for (std::size_t i : {kCos, kSin}) {
    if (!c.knows_shape(i)) continue;
    const Shape& cache = c.shape(i);
    c.require(cache.size() == rank, "rank of input ", i, ": got ", cache.size(), ", expected ", rank);
    c.unify(cache[rank - 1], half, "last extent of the caches");
    if (rank == 3) c.unify(cache[0], x[0], "batch of the caches"), c.unify(cache[1], length, "length of the caches");
  }
  if (!c.has_input(kPositions) || !c.knows_shape(kPositions)) return;
  const Shape& positions = c.shape(kPositions);
  c.require(positions.size() == 2, "rank of position_ids: got ", positions.size(), ", expected 2");
  c.unify(positions[0], x[0], "batch of position_ids"), c.unify(positions[1], length, "length of position_ids");
}

struct Layout {
  std::int64_t batch, length, heads, size, rotated;
  std::int64_t head_stride, row_stride;  ///< between heads, between positions
  bool interleaved;
};

// Elements 2i and 2i + 1 (interleaved), or i and half + i, are turned by the angle number i.
template <class T>
void rotate(const Layout& l, const T* x, const T* cos, const T* sin, T* y) {
  const std::int64_t half = l.rotated / 2;
  const std::int64_t step = l.interleaved ? 2 : 1;
  const std::int64_t other = l.interleaved ? 1 : half;
  for (std::int64_t i = 0; i < half; ++i) {
    const T a = x[i * step];
    const T b = x[i * step + other];
    y[i * step] = cos[i] * a - sin[i] * b;
    y[i * step + other] = sin[i] * a + cos[i] * b;
  }
  for (std::int64_t i = l.rotated; i < l.size; ++i) y[i] = x[i];
}

template <class T>
void run(const Layout& l, const T* x, const T* cos, const T* sin, const std::int64_t* positions, T* y) {
  const std::int64_t half = l.rotated / 2;
  const std::int64_t width = l.heads * l.size;
  parallel_for(l.batch * l.length, grain_for(width * 2), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t angle = (positions == nullptr ? p : positions[p]) * half;
      const std::int64_t start = p / l.length * l.length * width + p % l.length * l.row_stride;
      for (std::int64_t h = 0; h < l.heads; ++h) {
        const std::int64_t at = start + h * l.head_stride;
        rotate(l, x + at, cos + angle, sin + angle, y + at);
      }
    }
  });
}

Layout layout_of(const PrepareContext& c) {
  const Dims& x = c.in(kX).dims;
  Layout l{};
  l.batch = x[0];
  if (x.size() == 4) {
    l.heads = x[1], l.length = x[2], l.size = x[3], l.head_stride = x[2] * x[3], l.row_stride = x[3];
  } else {
    l.heads = c.node.attr_int("num_heads", 1), l.length = x[1], l.size = x[2] / l.heads;
    l.head_stride = l.size, l.row_stride = x[2];
  }
  l.rotated = c.node.attr_int("rotary_embedding_dim", 0);
  if (l.rotated == 0) l.rotated = l.size;
  l.interleaved = c.node.attr_int("interleaved", 0) != 0;
  return l;
}

Kernel prepare(PrepareContext& c) {
  const Layout layout = layout_of(c);
  const bool indexed = c.has_input(kPositions);
  const std::int64_t limit = c.in(kCos).dims[0] < c.in(kSin).dims[0] ? c.in(kCos).dims[0] : c.in(kSin).dims[0];
  return [=, dtype = c.in(kX).dtype, label = c.node.label()](const KernelArgs& args) {
    const auto* positions = indexed ? args.in<std::int64_t>(kPositions) : nullptr;
    for (std::int64_t i = 0; indexed && i < layout.batch * layout.length; ++i)
      if (positions[i] < 0 || positions[i] >= limit)
        fail(label, " position_ids at position ", i, ": got ", positions[i], ", expected [0, ", limit, ")");
    visit_real(dtype, [&]<class T>() {
      run<T>(layout, args.in<T>(kX), args.in<T>(kCos), args.in<T>(kSin), positions, args.out<T>(0));
    });
  };
}

/// The operator written out, for derivatives by the caches.
std::vector<Value*> write(Builder& b, const Node& node) {
  const std::set<const Value*> nothing;
  GradientContext g(b, node, {}, nothing);
  Value* x = g.x(kX);
  const bool is_packed = g.rank(x) == 3;
  if (is_packed) x = attention_parts::split_last_axis(g, x, node.attr_int("num_heads"));
  const std::int64_t part = node.attr_int("rotary_embedding_dim", 0);
  Value* turned = part == 0 ? x : g.slice(x, 0, part, -1);
  // Pairs along an axis of their own: [..., half, 2] or [..., 2, half].
  const bool is_interleaved = node.attr_int("interleaved", 0) != 0;
  Value* half = attention_parts::extent(g, g.x(kCos), -1);
  std::vector<Value*> shape;
  for (std::int64_t i = 0; i < 3; ++i) shape.push_back(attention_parts::extent(g, x, i));
  shape.insert(shape.end(), {half, b.ints({2})});
  if (!is_interleaved) std::swap(shape[3], shape[4]);
  Value* pairs = g.reshape_to(turned, g.concat(shape, 0));
  const std::int64_t axis = is_interleaved ? 4 : 3;
  Value* first = g.gather(pairs, b.integer(0), axis);
  Value* second = g.gather(pairs, b.integer(1), axis);
  auto angles = [&](std::size_t i) {
    Value* cache = g.has_input(kPositions) ? g.gather(g.x(i), g.x(kPositions), 0) : g.x(i);
    return g.unsqueeze(cache, {is_packed ? 2 : 1});
  };
  Value* cos = angles(kCos);
  Value* sin = angles(kSin);
  Value* real = g.unsqueeze(g.sub(g.mul(cos, first), g.mul(sin, second)), {axis});
  Value* imaginary = g.unsqueeze(g.add(g.mul(sin, first), g.mul(cos, second)), {axis});
  Value* y = g.reshape_like(g.concat({real, imaginary}, axis), turned);
  if (part != 0) y = g.concat({y, g.slice(x, part, std::numeric_limits<std::int64_t>::max(), -1)}, -1);
  return {is_packed ? attention_parts::join_last_axes(g, y) : y};
}

/// Turned back by the same angles.
void gradient(GradientContext& g) {
  if (g.wants(kCos) || g.wants(kSin)) return composite_gradient(g, write);
  const AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  std::vector<Value*> inputs{g.dy(), g.x(kCos), g.neg(g.x(kSin))};
  if (g.has_input(kPositions)) inputs.push_back(g.x(kPositions));
  g.set(kX, g.op("RotaryEmbedding", inputs, attributes));
}

const Register rotary_embedding{{.name = "RotaryEmbedding",
                                 .since = 23,
                                 .doc = "Rotates pairs of features by angles that grow with the position.",
                                 .inputs = {3, 4},
                                 .types = types::floats,
                                 .infer = infer,
                                 .prepare = prepare,
                                 .gradient = gradient,
                                 .half_through_float = true}};

}  // namespace
}  // namespace backpass
