// STFT: Fourier transforms of windowed pieces of a signal.
#include <complex>
#include <memory>
#include <utility>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/scalar_input.hpp"
#include "ops/signal/fft.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kSignal, kStep, kWindow, kLength };

Dim positive(InferContext& c, std::size_t input, std::string_view name) {
  Dim value = scalar_input(c, input, name);
  c.require(!value.is_known() || value.value() >= 1, name, ": got ", shown(value), ", expected 1 or more");
  return value;
}

Dim frame_length(InferContext& c, const Dim& signal) {
  std::optional<Dim> length;
  if (c.has_input(kWindow)) {
    c.require(c.rank(kWindow) == 1, "rank of window: got ", c.rank(kWindow), ", expected 1");
    length = c.shape(kWindow)[0];
  }
  if (c.has_input(kLength)) {
    const Dim given = positive(c, kLength, "frame_length");
    return length ? c.unify(given, *length, "frame_length and length of window") : given;
  }
  return length ? *length : signal;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kSignal));
  if (c.has_input(kWindow))
    c.require(c.dtype(kWindow) == c.dtype(kSignal), "element type of window: got ", name_of(c.dtype(kWindow)),
              ", expected ", name_of(c.dtype(kSignal)), " as signal");
  const Shape& signal = c.shape(kSignal);
  c.require(signal.size() == 3, "rank of signal: got ", signal.size(), ", expected 3");
  c.require(!signal[2].is_known() || signal[2].is(1) || signal[2].is(2), "last extent of signal: got ",
            shown(signal[2]), ", expected 1 or 2");
  const bool onesided = c.node.attr_int("onesided", 1) != 0;
  c.require(!(onesided && signal[2].is(2)), "onesided: got a complex signal, expected a real one; set onesided to 0");
  const Dim step = positive(c, kStep, "frame_step");
  const Dim length = frame_length(c, signal[1]);
  if (length.is_known() && signal[1].is_known())
    c.require(length.value() <= signal[1].value() && length.value() >= 1, "frame_length: got ", shown(length),
              ", expected 1 to the length of the signal, ", shown(signal[1]));
  c.set_shape(0, {signal[0], floor_div(signal[1] - length, step) + 1, onesided ? floor_div(length, 2) + 1 : length, 2});
}

struct Layout {
  std::int64_t batch, samples, parts, frames, bins, length, step;
};

template <class T>
void run(const Layout& l, const Fft<T>& fft, const T* signal, const T* window, T* y) {
  parallel_for(l.batch * l.frames, grain_for(l.length * 32), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::complex<T>> line(static_cast<std::size_t>(l.length));
    for (std::int64_t f = begin; f < end; ++f) {
      const T* from = signal + (f / l.frames * l.samples + f % l.frames * l.step) * l.parts;
      for (std::int64_t i = 0; i < l.length; ++i) {
        const T weight = window == nullptr ? T(1) : window[i];
        const T real = from[i * l.parts];
        const T imaginary = l.parts == 2 ? from[i * l.parts + 1] : T(0);
        line[static_cast<std::size_t>(i)] = {weight * real, weight * imaginary};
      }
      fft.transform(line.data(), false);
      T* to = y + f * l.bins * 2;
      for (std::int64_t i = 0; i < l.bins; ++i) {
        to[2 * i] = line[static_cast<std::size_t>(i)].real();
        to[2 * i + 1] = line[static_cast<std::size_t>(i)].imag();
      }
    }
  });
}

std::int64_t known_scalar(const PrepareContext& c, std::size_t input) {
  c.require(c.in(input).constant != nullptr, "input ", input, ": expected a value known before the kernel runs");
  return c.in(input).constant->to_ints().at(0);
}

/// The window settles the shape, so a frame_length that arrives with the data meets it only here.
Kernel checking_length(const PrepareContext& c, std::int64_t window, Kernel kernel) {
  const bool narrow = c.in(kLength).dtype == DType::int32;
  return [=, kernel = std::move(kernel)](const KernelArgs& args) {
    const std::int64_t given = narrow ? *args.in<std::int32_t>(kLength) : *args.in<std::int64_t>(kLength);
    if (given != window)
      fail("frame_length and length of window: got ", given, " and ", window, ", expected them to be equal");
    kernel(args);
  };
}

Kernel prepare(PrepareContext& c) {
  const Dims &signal = c.in(kSignal).dims, &out = c.out(0).dims;
  Layout l{signal[0], signal[1], signal[2], out[1], out[2], signal[1], known_scalar(c, kStep)};
  const bool windowed = c.has_input(kWindow);
  if (windowed) {
    l.length = c.in(kWindow).dims[0];
  } else if (c.has_input(kLength)) {
    l.length = known_scalar(c, kLength);
  }
  Kernel kernel;
  visit_real(c.in(kSignal).dtype, [&]<class T>() {
    auto fft = std::make_shared<const Fft<T>>(static_cast<std::size_t>(l.length));
    kernel = [=](const KernelArgs& args) {
      run<T>(l, *fft, args.in<T>(kSignal), windowed ? args.in<T>(kWindow) : nullptr, args.out<T>(0));
    };
  });
  const bool may_differ = windowed && c.has_input(kLength) && c.in(kLength).constant == nullptr;
  return may_differ ? checking_length(c, l.length, std::move(kernel)) : kernel;
}

Value* length_of(GradientContext& g) {
  if (g.has_input(kWindow)) return g.extent(g.x(kWindow), 0);
  if (g.has_input(kLength)) return g.cast(g.reshape(g.x(kLength), {}), DType::int64);
  return g.extent(g.x(kSignal), 1);
}

/// Back through the transform to the windowed pieces, then to the signal by adding up where they overlap.
void gradient(GradientContext& g) {
  Value* signal = g.x(kSignal);
  Value* length = length_of(g);
  Value* step = g.cast(g.reshape(g.x(kStep), {}), DType::int64);
  Value* zero = g.b.integer(0);
  Value* one = g.b.integer(1);
  Value* starts = g.mul(g.op("Range", {zero, g.extent(g.y(), 1), one}), step);
  Value* samples = g.op("Range", {zero, length, one});
  Value* places = g.reshape(g.add(g.unsqueeze(starts, {1}), samples), {-1});
  Value* whole = g.op("DFT", {g.dy(), length, g.b.integer(2)}, {{"inverse", std::int64_t{1}}});
  Value* parts = g.reshape(g.extent(signal, 2), {1});
  whole = g.op("Slice", {g.mul(whole, g.cast_like(length, g.dy())), g.b.ints({0}), parts, g.b.ints({3})});
  Value* line = g.reshape(length, {1});
  Value* batch = g.reshape(g.extent(signal, 0), {1});
  Value* frames = g.reshape(g.extent(g.y(), 1), {1});
  if (g.has_input(kWindow)) {
    Value* pieces = g.reshape_to(g.gather(signal, places, 1), g.concat({batch, frames, line, parts}, 0));
    if (g.wants(kWindow)) g.set(kWindow, g.reshape_like(g.sum(g.mul(pieces, whole), {0, 1, 3}, false), g.x(kWindow)));
    whole = g.mul(whole, g.unsqueeze(g.x(kWindow), {1}));
  }
  if (!g.wants(signal)) return;
  Value* flat = g.concat({batch, g.mul(frames, line), parts}, 0);
  Value* where = g.op("Expand", {g.reshape(places, {1, -1, 1}), flat});
  g.set(kSignal, g.op("ScatterElements", {g.zeros_like(signal), where, g.reshape_to(whole, flat)},
                      {{"axis", std::int64_t{1}}, {"reduction", std::string("add")}}));
}

const Register stft{{.name = "STFT",
                     .since = 17,
                     .doc = "Fourier transforms of windowed pieces of a signal.",
                     .inputs = {2, 4},
                     .types = types::floats,
                     .infer = infer,
                     .prepare = prepare,
                     .gradient = gradient,
                     .half_through_float = true}};

}  // namespace
}  // namespace backpass
