// Gradients of Dropout: ONNX Runtime's DropoutGrad, which reads the mask, and the one that draws it again.
#include <cstring>
#include <type_traits>

#include "graph/op.hpp"
#include "ops/random/dropout.hpp"
#include "ops/read_scalar.hpp"
#include "ops/shape_rules.hpp"
#include "support/half.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void pass_on(const KernelArgs& a, std::size_t bytes) {
  if (a.outputs[0] != a.inputs[0]) std::memcpy(a.outputs[0], a.inputs[0], bytes);
}

/// DropoutGrad(dy, mask, ratio, training_mode)
void infer_grad(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == DType::boolean, "mask: got ", name_of(c.dtype(1)), ", expected bool");
}

Kernel prepare_grad(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  c.require(c.in(1).size() == n, "mask: got ", shown(c.in(1).dims), ", expected ", shown(c.in(0).dims));
  ScalarInput ratio(c, 2, dropout::kDefaultRatio);
  ScalarInput training(c, 3, 1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    double r = training.read(a) == 0 ? 0 : dropout::checked_ratio(ratio.read(a), where);
    if (r == 0) return pass_on(a, byte_size(dtype, n));
    visit_real(dtype, [&]<class T>() {
      auto scale = static_cast<T>(1 / (1 - r));
      parallel_for(n, dropout::kGrain, [&](std::int64_t begin, std::int64_t end) {
        keep_where(a.in<bool>(1) + begin, end - begin, scale, a.in<T>(0) + begin, a.out<T>(0) + begin);
      });
    });
  };
}

const Register kGrad({.name = "DropoutGrad",
                      .domain = "com.microsoft",
                      .doc = "gradient of Dropout",
                      .inputs = {2, 4},
                      .types = types::floats,
                      .infer = infer_grad,
                      .prepare = prepare_grad,
                      .half_through_float = true,
                      .in_place_input = 0});

/// DropoutGradAgain(dy, ratio, training_mode) {stream, seed}: bit for bit what DropoutGrad gives for the mask of the
/// Dropout of that stream in the same run.
Kernel prepare_again(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  ScalarInput ratio(c, 1, dropout::kDefaultRatio);
  ScalarInput training(c, 2, 1);
  RandomStream stream(dropout::seed_of(c.node), c.node.attr_string("stream"));
  return [=, where = c.node.label()](const KernelArgs& a) {
    double r = training.read(a) == 0 ? 0 : dropout::checked_ratio(ratio.read(a), where);
    if (r == 0) return pass_on(a, byte_size(dtype, n));
    visit_float(dtype, [&]<class T>() {
      using Real = std::conditional_t<sizeof(T) == 8, double, float>;
      auto scale = static_cast<Real>(1 / (1 - r));
      const T* dy = a.in<T>(0);
      T* dx = a.out<T>(0);
      if constexpr (std::is_same_v<T, float>) {
        return dropout::keep_all_scaled(stream.next(), r, n, scale, dy, dx);
      }
      dropout::for_each_element(stream.next(), r, n, [=](std::int64_t i, bool keep) {
        dx[i] = keep ? T(static_cast<Real>(dy[i]) * scale) : T(Real{0});
      });
    });
  };
}

const Register kAgain({.name = "DropoutGradAgain",
                       .domain = "backpass",
                       .doc = "gradient of Dropout by drawing its random numbers again, instead of keeping a mask",
                       .inputs = {1, 3},
                       .types = types::floats,
                       .infer = rules::same_as_input,
                       .prepare = prepare_again,
                       .in_place_input = 0,
                       .is_random = true});

}  // namespace
}  // namespace backpass
