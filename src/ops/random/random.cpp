// RandomNormal, RandomUniform, their Like forms, Bernoulli, Multinomial. Attribute `seed` (a float) makes them
// repeatable.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "graph/op.hpp"
#include "support/parallel.hpp"
#include "support/random_seed.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 12;  // even: two elements share a block of random bits

/// Nodes draw different numbers because their names differ, or those of their results.
std::string_view stream_name(const Node& node) {
  return node.name.empty() && node.output(0) != nullptr ? node.output(0)->name : node.name;
}

RandomStream stream_of(const Node& node) {
  if (!node.has_attribute("seed")) return {std::nullopt, stream_name(node)};
  return {std::bit_cast<std::uint32_t>(node.attr_float("seed", 0)), stream_name(node)};
}

/// Attribute dtype, or `otherwise`; must be in `allowed`.
DType output_type(const InferContext& c, DType otherwise, DTypeSet allowed) {
  std::int64_t code = c.node.attr_int("dtype", static_cast<std::int64_t>(otherwise));
  bool known = is_known_dtype(code) && allowed.has(static_cast<DType>(code));
  c.require(known, "dtype: got ", is_known_dtype(code) ? name_of(static_cast<DType>(code)) : "an unknown code",
            ", expected one of ", shown(allowed));
  return static_cast<DType>(code);
}

void infer_shape_attribute(InferContext& c) {
  c.set_dtype(0, output_type(c, DType::float32, types::floats));
  c.require(c.node.has_attribute("shape"), "attribute shape is missing");
  Dims dims = c.node.attr_ints("shape");
  element_count(dims);  // refuses negative and enormous extents
  c.set_shape(0, to_shape(dims));
}

void infer_like(InferContext& c) {
  c.set_dtype(0, output_type(c, c.dtype(0), types::floats));
  c.set_shape(0, c.shape(0));
}

/// y[i] = f(philox, i)
template <class T, class F>
void fill(T* y, std::int64_t n, const F& f) {
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(f(static_cast<std::uint64_t>(i)));
  });
}

Kernel prepare_normal(PrepareContext& c) {
  DType dtype = c.out(0).dtype;
  std::int64_t n = c.out(0).size();
  double mean = c.node.attr_float("mean", 0);
  double scale = c.node.attr_float("scale", 1);
  return [=, stream = stream_of(c.node)](const KernelArgs& a) {
    Philox random = stream.next();
    visit_real(dtype, [&]<class T>() {
      fill(a.out<T>(0), n, [&](std::uint64_t i) { return mean + scale * random.normal(i); });
    });
  };
}

Kernel prepare_uniform(PrepareContext& c) {
  DType dtype = c.out(0).dtype;
  std::int64_t n = c.out(0).size();
  double low = c.node.attr_float("low", 0);
  double high = c.node.attr_float("high", 1);
  return [=, stream = stream_of(c.node)](const KernelArgs& a) {
    Philox random = stream.next();
    visit_real(dtype, [&]<class T>() {
      // Rounding to a narrower type may reach `high`, which is excluded.
      T last = std::nextafter(static_cast<T>(high), static_cast<T>(low));
      fill(a.out<T>(0), n,
           [&](std::uint64_t i) { return std::min(static_cast<T>(low + (high - low) * random.uniform(i)), last); });
    });
  };
}

OpDef generator(std::string_view name, std::string_view doc, Kernel (*prepare)(PrepareContext&), bool like) {
  return {.name = name,
          .since = 22,
          .doc = doc,
          .inputs = {like ? 1 : 0, like ? 1 : 0},
          .types = {},
          .infer = like ? infer_like : infer_shape_attribute,
          .prepare = prepare,
          .is_flat = true,  // only the shape of the input counts
          .half_through_float = true,
          .is_random = true};
}

const Register kNormal(generator("RandomNormal", "normally distributed numbers", prepare_normal, false));
const Register kNormalLike(generator("RandomNormalLike", "normal numbers in the input's shape", prepare_normal, true));
const Register kUniform(generator("RandomUniform", "uniformly distributed numbers", prepare_uniform, false));
const Register kUniformLike(generator("RandomUniformLike", "uniform numbers in the input's shape", prepare_uniform,
                                      true));

void infer_bernoulli(InferContext& c) {
  c.set_dtype(0, output_type(c, c.dtype(0), types::numbers | types::boolean));
  c.set_shape(0, c.shape(0));
}

Kernel prepare_bernoulli(PrepareContext& c) {
  DType in = c.in(0).dtype;
  DType out = c.out(0).dtype;
  std::int64_t n = c.in(0).size();
  return [=, stream = stream_of(c.node), where = c.node.label()](const KernelArgs& a) {
    Philox random = stream.next();
    visit_real(in, [&]<class P>() {
      const P* p = a.in<P>(0);
      for (std::int64_t i = 0; i < n; ++i) {
        if (!(p[i] >= 0 && p[i] <= 1)) fail(where, " probability ", p[i], " at position ", i, ": expected [0, 1]");
      }
      auto draw = [&](std::uint64_t i) { return random.uniform(i) < static_cast<double>(p[i]); };
      if (out == DType::boolean) return fill(a.out<bool>(0), n, draw);
      visit_real_or_integer(out, [&]<class T>() { fill(a.out<T>(0), n, draw); });
    });
  };
}

const Register kBernoulli({.name = "Bernoulli",
                           .since = 22,
                           .doc = "1 with the given probabilities, else 0",
                           .types = types::floats,
                           .infer = infer_bernoulli,
                           .prepare = prepare_bernoulli,
                           .is_flat = true,
                           .half_through_float = true,
                           .is_random = true});

void infer_multinomial(InferContext& c) {
  c.set_dtype(0, output_type(c, DType::int32, types::indices));
  std::int64_t samples = c.node.attr_int("sample_size", 1);
  c.require(samples > 0, "sample_size: got ", samples, ", expected a positive number");
  c.require(c.rank(0) == 2, "input: got rank ", c.rank(0), ", expected [batch, classes]");
  c.require(!c.shape(0)[1].is(0), "input has no classes to choose from");
  c.set_shape(0, {c.shape(0)[0], samples});
}

/// Draws `samples` classes of one row of unnormalised log probabilities by inverting the distribution function.
template <class P, class T>
void draw_classes(const Philox& random, std::uint64_t first, const P* logits, std::int64_t classes,
                  std::int64_t samples, double* cumulative, T* y) {
  double largest = static_cast<double>(*std::max_element(logits, logits + classes));
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) cumulative[k] = sum += std::exp(static_cast<double>(logits[k]) - largest);
  for (std::int64_t s = 0; s < samples; ++s) {
    double target = random.uniform(first + static_cast<std::uint64_t>(s)) * sum;
    std::int64_t k = std::upper_bound(cumulative, cumulative + classes, target) - cumulative;
    y[s] = static_cast<T>(std::min(k, classes - 1));
  }
}

Kernel prepare_multinomial(PrepareContext& c) {
  DType in = c.in(0).dtype;
  DType out = c.out(0).dtype;
  std::int64_t batch = c.in(0).dims[0];
  std::int64_t classes = c.in(0).dims[1];
  std::int64_t samples = c.out(0).dims[1];
  std::size_t scratch = c.reserve(static_cast<std::size_t>(classes) * sizeof(double));
  return [=, stream = stream_of(c.node)](const KernelArgs& a) {
    Philox random = stream.next();
    auto* cumulative = reinterpret_cast<double*>(a.scratch + scratch);
    visit_real(in, [&]<class P>() {
      visit_index(out, [&]<class T>() {
        for (std::int64_t b = 0; b < batch; ++b) {
          draw_classes(random, static_cast<std::uint64_t>(b * samples), a.in<P>(0) + b * classes, classes, samples,
                       cumulative, a.out<T>(0) + b * samples);
        }
      });
    });
  };
}

const Register kMultinomial({.name = "Multinomial",
                             .since = 22,
                             .doc = "classes drawn from unnormalised log probabilities",
                             .types = types::floats,
                             .infer = infer_multinomial,
                             .prepare = prepare_multinomial,
                             .half_through_float = true,
                             .is_random = true});

}  // namespace
}  // namespace backpass
