// FlexAttention (ai.onnx.preview): attention whose scores and probabilities pass through given bodies.
#include <cmath>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/gemm.hpp"
#include "kernels/slices.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/attention/flex_attention_rule.hpp"
#include "ops/control_flow/subgraph.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

DType inner_dtype(const Node& node, DType input) {
  const DType usual = input == DType::float64 ? DType::float64 : DType::float32;
  const std::int64_t code = node.attr_int("softmax_precision", static_cast<std::int64_t>(usual));
  if (!is_known_dtype(code) || !is_float(static_cast<DType>(code)))
    fail(node.label(), " attribute 'softmax_precision': got ", code, ", expected a floating-point type");
  return static_cast<DType>(code);
}

void check_shapes(InferContext& c) {
  for (std::size_t i = 0; i < 3; ++i)
    c.require(c.rank(i) == 4, "rank of input ", i, ": got ", c.rank(i), ", expected 4");
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  c.unify(k[0], q[0], "batch of K"), c.unify(v[0], q[0], "batch of V"), c.unify(k[3], q[3], "head sizes of Q and K");
  c.unify(v[1], k[1], "heads of K and V"), c.unify(v[2], k[2], "lengths of K and V");
  if (q[1].is_known() && k[1].is_known())
    c.require(k[1].value() > 0 && q[1].value() % k[1].value() == 0, "heads of Q: got ", shown(q[1]),
              ", expected a multiple of those of K, ", shown(k[1]));
  c.set_shape(0, {q[0], q[1], q[2], v[3]});
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(2));
  for (std::size_t i : {1, 2})
    c.require(c.dtype(i) == c.dtype(0), "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(c.dtype(0)), " as Q");
  Type scores = Type::tensor(inner_dtype(c.node, c.dtype(0)));
  if (c.knows_shape(0) && c.knows_shape(1) && c.rank(0) == 4 && c.rank(1) == 4)
    scores.shape = Shape{c.shape(0)[0], c.shape(0)[1], c.shape(0)[2], c.shape(1)[2]};
  for (const char* key : {"score_mod", "prob_mod"}) {
    if (c.node.subgraph(key) == nullptr) continue;
    body_of(c.node, key, 1, 1);
    infer_body(c.node, key, {scores});
  }
  check_shapes(c);
}

/// The elements as T (float or double), and back.
template <class T>
Tensor widened(const Tensor& t) {
  Tensor out(sizeof(T) == 4 ? DType::float32 : DType::float64, t.dims());
  visit_float(t.dtype(), [&]<class E>() {
    for (std::int64_t i = 0; i < t.size(); ++i) out.as<T>()[i] = static_cast<T>(t.as<E>()[i]);
  });
  return out;
}

template <class T>
Tensor narrowed(const Tensor& t, DType dtype) {
  Tensor out(dtype, t.dims());
  visit_float(dtype, [&]<class E>() {
    for (std::int64_t i = 0; i < t.size(); ++i) out.as<E>()[i] = E(t.as<T>()[i]);
  });
  return out;
}

template <class T>
Tensor modified(ComputeContext& c, const char* key, DType dtype, Tensor values) {
  if (c.node.subgraph(key) == nullptr) return values;
  std::vector<RuntimeValue> results = c.run_subgraph(key, {narrowed<T>(values, dtype)});
  const bool fits = results.size() == 1 && results[0].is_tensor() && results[0].tensor.dims() == values.dims() &&
                    results[0].tensor.dtype() == dtype;
  c.require(fits, "'", key, "': expected a result of type ", name_of(dtype), " and shape ", shown(values.dims()));
  return widened<T>(results[0].tensor);
}

template <class T>
void softmax(Tensor& scores) {
  const std::int64_t width = scores.dims()[3];
  if (width == 0) return;
  parallel_for(scores.size() / width, grain_for(width * 8), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* x = scores.as<T>() + row * width;
      T largest = -std::numeric_limits<T>::infinity();
      T rescale = 1;
      const T sum = continue_softmax(x, width, largest, rescale);
      for (std::int64_t i = 0; i < width; ++i) x[i] /= sum;
    }
  });
}

template <class T>
void compute_typed(ComputeContext& c, DType precision) {
  const Tensor q = widened<T>(c.tensor(0));
  const Tensor k = widened<T>(c.tensor(1));
  const Tensor v = widened<T>(c.tensor(2));
  const std::int64_t batch = q.dims()[0], heads = q.dims()[1], rows = q.dims()[2], size = q.dims()[3];
  const std::int64_t keys = k.dims()[2], v_size = v.dims()[3], group = heads / std::max<std::int64_t>(k.dims()[1], 1);
  const auto scale = static_cast<T>(c.node.has_attribute("scale") ? static_cast<double>(c.node.attr_float("scale", 1))
                                                                  : 1 / std::sqrt(static_cast<double>(size)));
  Tensor scores(q.dtype(), {batch, heads, rows, keys});
  for (std::int64_t i = 0; i < batch * heads; ++i)
    gemm<T>(false, true, rows, keys, size, scale, q.as<T>() + i * rows * size, size,
            k.as<T>() + i / group * keys * size, size, T(0), scores.as<T>() + i * rows * keys, keys);
  scores = modified<T>(c, "score_mod", precision, std::move(scores));
  softmax<T>(scores);
  scores = modified<T>(c, "prob_mod", precision, std::move(scores));
  Tensor y(q.dtype(), {batch, heads, rows, v_size});
  for (std::int64_t i = 0; i < batch * heads; ++i)
    gemm<T>(false, false, rows, v_size, keys, T(1), scores.as<T>() + i * rows * keys, keys,
            v.as<T>() + i / group * keys * v_size, v_size, T(0), y.as<T>() + i * rows * v_size, v_size);
  c.outputs[0] = narrowed<T>(y, c.tensor(2).dtype());
}

void compute(ComputeContext& c) {
  for (std::size_t i = 0; i < 3; ++i) c.require(c.tensor(i).rank() == 4, "rank of input ", i, ": expected 4");
  const DType precision = inner_dtype(c.node, c.tensor(0).dtype());
  if (precision == DType::float64 || c.tensor(0).dtype() == DType::float64) return compute_typed<double>(c, precision);
  compute_typed<float>(c, precision);
}

const Register flex_attention{{.name = "FlexAttention",
                               .domain = "ai.onnx.preview",
                               .since = 1,
                               .doc = "Attention whose scores and probabilities pass through given bodies.",
                               .inputs = {3, 3},
                               .types = types::floats,
                               .infer = infer,
                               .compute = compute,
                               .gradient = flex_attention_gradient}};

}  // namespace
}  // namespace backpass
