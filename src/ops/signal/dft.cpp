// DFT: discrete Fourier transform along one axis.
#include <algorithm>
#include <complex>
#include <memory>
#include <utility>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/scalar_input.hpp"
#include "ops/signal/fft.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

struct Options {
  bool inverse, onesided;
};

Options options_of(const Node& node) {
  const std::int64_t inverse = node.attr_int("inverse", 0);
  const std::int64_t onesided = node.attr_int("onesided", 0);
  for (std::int64_t flag : {inverse, onesided})
    if (flag != 0 && flag != 1)
      fail(node.label(), " attributes 'inverse' and 'onesided': got ", flag, ", expected 0 or 1");
  return {inverse == 1, onesided == 1};
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const auto [inverse, onesided] = options_of(c.node);
  Shape shape = c.shape(0);
  c.require(shape.size() >= 2, "rank of input: got ", shape.size(), ", expected at least 2");
  std::size_t axis = shape.size() - 2;
  if (c.has_input(2)) {
    const Dim given = scalar_input(c, 2, "axis");
    if (!given.is_known()) return;
    axis = c.axis(given.value(), shape.size());
  }
  c.require(axis + 1 < shape.size(), "axis: got the last one, which holds real and imaginary parts");
  const Dim& parts = shape.back();
  c.require(!parts.is_known() || parts.is(1) || parts.is(2), "last extent of input: got ", shown(parts),
            ", expected 1 or 2");
  c.require(!(onesided && !inverse && parts.is(2)), "onesided: got complex input, expected real input");
  Dim length = c.has_input(1)        ? scalar_input(c, 1, "dft_length")
               : onesided && inverse ? (shape[axis] - 1) * Dim(2)
                                     : shape[axis];
  c.require(!length.is_known() || length.value() >= 1, "dft_length: got ", shown(length), ", expected 1 or more");
  shape[axis] = onesided && !inverse ? floor_div(length, 2) + 1 : length;
  shape.back() = onesided && inverse ? 1 : 2;
  c.set_shape(0, std::move(shape));
}

/// Lines along the axis: input [outer, in, inner, in_parts] to output [outer, out, inner, out_parts].
struct Layout {
  std::int64_t outer, inner, in, out, in_parts, out_parts, length;
};

// The spectrum of a real signal is its own mirror image, to the last bit.
template <class T>
void make_symmetric(std::vector<std::complex<T>>& line) {
  const std::size_t n = line.size();
  line[0].imag(0);
  if (n % 2 == 0) line[n / 2].imag(0);
  for (std::size_t i = 1; i < (n + 1) / 2; ++i) line[n - i] = std::conj(line[i]);
}

template <class T>
void transform_line(const Layout& l, const Options& o, const Fft<T>& fft, const T* x, T* y,
                    std::vector<std::complex<T>>& line) {
  std::fill(line.begin(), line.end(), std::complex<T>());
  const bool hermitian = o.inverse && o.onesided;
  const std::int64_t used = std::min(l.in, hermitian ? l.length / 2 + 1 : l.length);
  for (std::int64_t i = 0; i < used; ++i) {
    const T* from = x + i * l.inner * l.in_parts;
    line[static_cast<std::size_t>(i)] = {from[0], l.in_parts == 2 ? from[1] : T(0)};
  }
  if (hermitian) make_symmetric(line);
  fft.transform(line.data(), o.inverse);
  if (l.in_parts == 1) make_symmetric(line);
  for (std::int64_t i = 0; i < l.out; ++i) {
    T* to = y + i * l.inner * l.out_parts;
    to[0] = line[static_cast<std::size_t>(i)].real();
    if (l.out_parts == 2) to[1] = line[static_cast<std::size_t>(i)].imag();
  }
}

template <class T>
void run(const Layout& l, const Options& o, const Fft<T>& fft, const T* x, T* y) {
  parallel_for(l.outer * l.inner, grain_for(l.length * 32), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::complex<T>> line(static_cast<std::size_t>(l.length));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t o_index = i / l.inner;
      const std::int64_t k = i % l.inner;
      transform_line(l, o, fft, x + (o_index * l.in * l.inner + k) * l.in_parts,
                     y + (o_index * l.out * l.inner + k) * l.out_parts, line);
    }
  });
}

// The axis where extents may differ is needed: it is a constant whenever the output's shape is known.
std::size_t axis_of(const PrepareContext& c) {
  const std::size_t rank = c.in(0).dims.size();
  if (!c.has_input(2)) return rank - 2;
  c.require(c.in(2).constant != nullptr, "axis: expected a value known before the kernel runs");
  return c.axis(c.in(2).constant->to_ints().at(0), rank);
}

Kernel prepare(PrepareContext& c) {
  const Options options = options_of(c.node);
  const Dims &in = c.in(0).dims, &out = c.out(0).dims;
  const std::size_t axis = axis_of(c);
  Layout l{1, 1, in[axis], out[axis], in.back(), out.back(), 0};
  for (std::size_t i = 0; i < axis; ++i) l.outer *= in[i];
  for (std::size_t i = axis + 1; i + 1 < in.size(); ++i) l.inner *= in[i];
  l.length = l.out;
  if (options.onesided && !options.inverse) {
    // Odd and even lengths give the same number of frequencies.
    const Tensor* given = c.has_input(1) ? c.in(1).constant : nullptr;
    c.require(!c.has_input(1) || given != nullptr, "dft_length: expected a value known before the kernel runs");
    l.length = given == nullptr ? l.in : given->to_ints().at(0);
  }
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    auto fft = std::make_shared<const Fft<T>>(static_cast<std::size_t>(l.length));
    kernel = [=](const KernelArgs& args) { run<T>(l, options, *fft, args.in<T>(0), args.out<T>(0)); };
  });
  return kernel;
}

std::int64_t axis_of(const GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  if (!g.has_input(2)) return rank - 2;
  const Value* given = g.x(2);
  if (!given->constant) {
    fail<Unsupported>(g.node.label(), " gradient: got an axis that is known only at run time, expected a constant");
  }
  const std::int64_t axis = given->constant->to_ints().at(0);
  return axis < 0 ? axis + rank : axis;
}

/// The length of the transform, 0-D int64.
Value* length_of(GradientContext& g, std::int64_t axis, const Options& o) {
  if (!(o.onesided && !o.inverse)) return g.extent(g.y(), axis);
  return g.has_input(1) ? g.cast(g.reshape(g.x(1), {}), DType::int64) : g.extent(g.x(), axis);
}

/// How often each of the frequencies of a one-sided spectrum stands in the whole one; broadcasts along `axis`.
Value* repetitions(GradientContext& g, Value* like, Value* length, std::int64_t axis) {
  Value* k = g.op("Range", {g.b.integer(0), g.extent(like, axis), g.b.integer(1)});
  Value* twice = g.mul(k, g.b.integer(2));
  Value* alone = g.op("Or", {g.equal(k, g.b.integer(0)), g.equal(twice, length)});
  std::vector<std::int64_t> shape(static_cast<std::size_t>(g.rank(g.x()) - axis), 1);
  shape[0] = -1;
  return g.reshape(g.where(alone, g.number(1), g.number(2)), shape);
}

/// The map is linear and its transpose is the transform in the other direction, with the other scaling.
void gradient(GradientContext& g) {
  const Options o = options_of(g.node);
  const std::int64_t axis = axis_of(g);
  Value* length = length_of(g, axis, o);
  const bool halves = o.inverse && o.onesided;
  Value* spectrum = g.op("DFT", {g.dy(), halves ? nullptr : length, g.b.integer(axis)},
                         {{"inverse", std::int64_t{!o.inverse}}, {"onesided", std::int64_t{halves}}});
  Value* factor = g.cast_like(length, g.dy());
  Value* dx = o.inverse ? g.div(spectrum, factor) : g.mul(spectrum, factor);
  if (halves) dx = g.mul(dx, repetitions(g, dx, length, axis));
  if (!(dx->type.shape &&
        (*dx->type.shape)[static_cast<std::size_t>(axis)] == (*g.x()->type.shape)[static_cast<std::size_t>(axis)])) {
    Value* missing = g.reshape(g.sub(g.extent(g.x(), axis), g.extent(dx, axis)), {1});  // negative: cut off
    dx = g.op("Pad", {dx, g.concat({g.b.ints({0}), missing}, 0), nullptr, g.b.ints({axis})});
  }
  Value* parts = g.reshape(g.extent(g.x(), -1), {1});
  g.set(0, g.reshape_like(g.op("Slice", {dx, g.b.ints({0}), parts, g.b.ints({-1})}), g.x()));
}

const Register dft{{.name = "DFT",
                    .since = 20,
                    .doc = "Discrete Fourier transform along one axis.",
                    .inputs = {1, 3},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = gradient,
                    .half_through_float = true}};

void lift_before_20(Builder& b, Node& node) {
  const std::int64_t axis = node.attr_int("axis", 1);
  b.graph.set_inputs(node, {node.input(0), node.input(1), b.integer(axis)});
  node.attributes.erase("axis");
}
const RegisterAdapter dft_20{{.op = "DFT", .below = 20, .lift = lift_before_20}};

}  // namespace
}  // namespace backpass
