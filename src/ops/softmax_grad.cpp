// Gradients of Softmax and LogSoftmax from their outputs, under the names ONNX Runtime gives them. SoftmaxGrad and
// LogSoftmaxGrad see a matrix whose columns start at `axis`; the forms ending in _13 work along one axis.
#include <cmath>

#include "ops/axis_view.hpp"
#include "ops/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

template <bool flat>
std::int64_t axis_of(const Node& node) {
  return node.attr_int("axis", flat ? 1 : -1);
}

template <bool flat>
void infer(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == c.dtype(0), "output of the forward pass: got ", name_of(c.dtype(1)), ", expected ",
            name_of(c.dtype(0)));
  if (c.knows_shape(0)) c.axis(axis_of<flat>(c.node), c.rank(0));
}

/// softmax: dx = y * (dy - sum(dy * y)); log-softmax: dx = dy - exp(y) * sum(dy). Elements `stride` apart.
template <bool log, class T>
void gradient_row(const T* dy, const T* y, T* dx, std::int64_t n, std::int64_t stride) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    auto g = static_cast<double>(dy[i * stride]);
    sum += log ? g : g * static_cast<double>(y[i * stride]);
  }
  auto s = static_cast<T>(sum);
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t at = i * stride;
    dx[at] = log ? dy[at] - std::exp(y[at]) * s : y[at] * (dy[at] - s);
  }
}

template <bool log, bool flat>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  c.require(c.in(0).dims == c.in(1).dims, "got shapes ", shown(c.in(0).dims), " and ", shown(c.in(1).dims),
            ", expected the same");
  AxisView v = axis_view(c, axis_of<flat>(c.node));
  if (flat) v = {v.outer, v.extent * v.inner, 1};
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      parallel_for(v.outer * v.inner, grain_for(v.extent * (log ? 8 : 2)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          std::int64_t at = (i / v.inner) * v.extent * v.inner + i % v.inner;
          gradient_row<log>(a.in<T>(0) + at, a.in<T>(1) + at, a.out<T>(0) + at, v.extent, v.inner);
        }
      });
    });
  };
}

template <bool log, bool flat>
OpDef definition(std::string_view name, std::string_view doc) {
  return {.name = name,
          .domain = "com.microsoft",
          .doc = doc,
          .inputs = {2, 2},
          .types = types::floats,
          .infer = infer<flat>,
          .prepare = prepare<log, flat>,
          .half_through_float = true,
          .in_place_input = 0};
}

const Register kSoftmax(definition<false, true>("SoftmaxGrad", "gradient of Softmax before opset 13"));
const Register kLogSoftmax(definition<true, true>("LogSoftmaxGrad", "gradient of LogSoftmax before opset 13"));
const Register kSoftmax13(definition<false, false>("SoftmaxGrad_13", "gradient of Softmax"));
const Register kLogSoftmax13(definition<true, false>("LogSoftmaxGrad_13", "gradient of LogSoftmax"));

}  // namespace
}  // namespace backpass
