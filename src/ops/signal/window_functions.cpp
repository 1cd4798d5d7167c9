// HannWindow, HammingWindow, BlackmanWindow: weights for pieces of a signal.
#include <cmath>
#include <numbers>

#include "graph/op.hpp"
#include "ops/scalar_input.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// w[n] = a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N)
struct Window {
  double a0, a1, a2;
};

constexpr Window kHann{0.5, 0.5, 0};
constexpr Window kHamming{25.0 / 46.0, 21.0 / 46.0, 0};
constexpr Window kBlackman{0.42, 0.5, 0.08};

void infer(InferContext& c) {
  const std::int64_t code = c.node.attr_int("output_datatype", static_cast<std::int64_t>(DType::float32));
  c.require(is_known_dtype(code) && types::numbers.has(static_cast<DType>(code)), "attribute 'output_datatype': got ",
            code, ", expected a number type");
  c.set_dtype(0, static_cast<DType>(code));
  const Dim size = scalar_input(c, 0, "size");
  c.require(!size.is_known() || size.value() >= 0, "size: got ", shown(size), ", expected 0 or more");
  c.set_shape(0, {size});
}

Kernel prepare(PrepareContext& c, const Window& w) {
  const bool periodic = c.node.attr_int("periodic", 1) != 0;
  return [=, size = c.out(0).size(), dtype = c.out(0).dtype](const KernelArgs& args) {
    const double period = static_cast<double>(periodic ? size : size - 1);
    visit_numeric(dtype, [&]<class T>() {
      for (std::int64_t n = 0; n < size; ++n) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(n) / period;
        // A symmetric window of one element has no period: it is its peak.
        const double value = period == 0 ? 1 : w.a0 - w.a1 * std::cos(angle) + w.a2 * std::cos(2 * angle);
        args.out<T>(0)[n] = static_cast<T>(value);
      }
    });
  };
}

#define BACKPASS_WINDOW(variable, title, window)                                            \
  const Register variable{{.name = title "Window",                                          \
                           .since = 17,                                                     \
                           .doc = "The " title " window: weights for a piece of a signal.", \
                           .inputs = {1, 1},                                                \
                           .types = types::indices,                                         \
                           .infer = infer,                                                  \
                           .prepare = [](PrepareContext& c) { return prepare(c, window); }, \
                           .is_flat = true}};

BACKPASS_WINDOW(hann, "Hann", kHann)
BACKPASS_WINDOW(hamming, "Hamming", kHamming)
BACKPASS_WINDOW(blackman, "Blackman", kBlackman)
#undef BACKPASS_WINDOW

}  // namespace
}  // namespace backpass
