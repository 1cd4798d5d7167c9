// CausalConvWithState: depthwise convolution over the past, carrying the last elements from call to call.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "gradient/composite.hpp"
#include "graph/op.hpp"
#include "kernels/conv.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kBias, kPast };

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kX));
  if (c.has_output(1)) c.set_dtype(1, c.dtype(kX));
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == c.dtype(kX), "input ", i, " has element type ", name_of(c.dtype(i)), ": expected ",
              name_of(c.dtype(kX)));
  }
  std::string activation = c.node.attr_string("activation", "none");
  c.require(activation == "none" || activation == "silu" || activation == "swish", "attribute activation is '",
            activation, "': expected none, silu or swish");
  const Shape& x = c.shape(kX);
  c.require(x.size() == 3, "input is ", shown(x), ": expected [batch, channels, length]");
  c.set_shape(0, x);
  const Shape& w = c.shape(kW);
  c.require(w.size() == 3 && (!w[1].is_known() || w[1].is(1)), "weights are ", shown(w), ": expected [channels, 1, k]");
  c.unify(w[0], x[1], "channels of weights and input");
  c.require(!w[2].is(0), "weights are ", shown(w), ": expected at least one kernel position");
  Dim carried = w[2] - 1;
  if (c.has_input(kBias) && c.knows_shape(kBias)) {
    c.require(c.rank(kBias) == 1, "bias is ", shown(c.shape(kBias)), ": expected [channels]");
    c.unify(c.shape(kBias)[0], x[1], "channels of bias and input");
  }
  if (c.has_input(kPast) && c.knows_shape(kPast)) {
    const Shape& past = c.shape(kPast);
    c.require(past.size() == 3, "past_state is ", shown(past), ": expected [batch, channels, k - 1]");
    c.unify(past[0], x[0], "batch of past_state and input");
    c.unify(past[1], x[1], "channels of past_state and input");
    c.unify(past[2], carried, "extent of past_state against k - 1");
  }
  if (c.has_output(1)) c.set_shape(1, {x[0], x[1], carried});
}

struct Spec {
  std::int64_t batch, channels, length, kernel;
  bool has_bias, has_past, has_state, silu;
};

/// One channel of one image. Position t of the padded sequence is past[t], or x[t - carried].
template <class T>
void one_row(const Spec& s, const T* x, const T* w, T bias, const T* past, T* y, T* state) {
  std::int64_t carried = s.kernel - 1;
  auto padded = [&](std::int64_t t) {
    if (t >= carried) return x[t - carried];
    return past != nullptr ? past[t] : T(0);
  };
  for (std::int64_t t = 0; t < s.length; ++t) {
    T sum = bias;
    for (std::int64_t j = 0; j < s.kernel; ++j) sum += w[j] * padded(t + j);
    y[t] = s.silu ? sum / (T(1) + std::exp(-sum)) : sum;
  }
  for (std::int64_t j = 0; state != nullptr && j < carried; ++j) state[j] = padded(s.length + j);
}

template <class T>
void run(const Spec& s, const KernelArgs& args) {
  std::int64_t carried = s.kernel - 1;
  parallel_for(s.batch * s.channels, grain_for(s.length * s.kernel), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t c = i % s.channels;
      one_row<T>(s, args.in<T>(kX) + i * s.length, args.in<T>(kW) + c * s.kernel,
                 s.has_bias ? args.in<T>(kBias)[c] : T(0), s.has_past ? args.in<T>(kPast) + i * carried : nullptr,
                 args.out<T>(0) + i * s.length, s.has_state ? args.out<T>(1) + i * carried : nullptr);
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const Dims& x = c.in(kX).dims;
  Spec s{x[0],
         x[1],
         x[2],
         c.in(kW).dims[2],
         c.has_input(kBias),
         c.has_input(kPast),
         c.has_output(1),
         c.node.attr_string("activation", "none") != "none"};
  Kernel kernel;
  visit_real(c.in(kX).dtype, [&]<class T>() { kernel = [s](const KernelArgs& args) { run<T>(s, args); }; });
  return kernel;
}

/// The operator written out: a window of the padded sequence per position, times the weights.
std::vector<Value*> write(Builder& b, const Node& node) {
  const std::set<const Value*> nothing;
  GradientContext g(b, node, {}, nothing);
  Value* x = g.x(kX);
  Value* zero = b.integer(0);
  Value* one = b.integer(1);
  Value* kernel = g.extent(g.x(kW), 2);
  Value* length = g.extent(x, 2);
  Value* past = nullptr;
  if (g.has_input(kPast)) {
    past = g.x(kPast);
  } else {
    Value* carried = g.unsqueeze(g.sub(kernel, one), {0});
    Value* rows = g.op("Shape", {x}, {{"start", std::int64_t{0}}, {"end", std::int64_t{2}}});
    past = g.op("Expand", {g.zero(x), g.concat({rows, carried}, 0)});
  }
  Value* padded = g.concat({past, x}, 2);
  Value* positions = g.add(g.unsqueeze(g.op("Range", {zero, length, one}), {1}), g.op("Range", {zero, kernel, one}));
  Value* y = g.sum(g.mul(g.gather(padded, positions, 2), g.x(kW)), {-1}, false);
  if (g.has_input(kBias)) y = g.add(y, g.unsqueeze(g.x(kBias), {1}));
  if (node.attr_string("activation", "none") != "none") y = g.mul(y, g.op("Sigmoid", {y}));
  Value* end = b.ints({std::numeric_limits<std::int64_t>::max()});
  return {y, g.op("Slice", {padded, g.unsqueeze(length, {0}), end, b.ints({2})})};
}

void gradient(GradientContext& g) { composite_gradient(g, write); }

const Register causal_conv{{.name = "CausalConvWithState",
                            .since = 27,
                            .doc = "depthwise convolution over the past with a carried state, optional SiLU",
                            .inputs = {2, 4},
                            .outputs = {1, 2},
                            .types = types::floats,
                            .infer = infer,
                            .prepare = prepare,
                            .gradient = gradient,
                            .half_through_float = true}};

}  // namespace
}  // namespace backpass
