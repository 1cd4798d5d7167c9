// BatchNormalization, and ONNX Runtime's BatchNormInternal: every channel to mean 0 and variance 1, by given statistics
// or (training) those of the batch, then scale and shift.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/normalization/batch_norm.hpp"
#include "ops/normalization/batch_normalization_rule.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// Y, then `statistics` outputs with one value per channel.
void infer_with(InferContext& c, std::size_t statistics) {
  c.set_dtype(0, c.dtype(0));
  for (std::size_t k = 1; k <= statistics; ++k) c.set_dtype(k, c.dtype(3));
  for (std::size_t i = 1; i <= 4; ++i) {
    c.require(is_float(c.dtype(i)), "input ", i, ": got ", name_of(c.dtype(i)), ", expected a float type");
  }
  const Shape& x = c.shape(0);
  c.require(!x.empty(), "input: got a scalar, expected [batch, channels, ...]");
  Dim channels = x.size() > 1 ? x[1] : Dim(1);
  for (std::size_t i = 1; i <= 4; ++i) {
    if (!c.knows_shape(i)) continue;
    c.require(c.rank(i) == 1, "input ", i, ": got shape ", shown(c.shape(i)), ", expected one value per channel");
    channels = c.unify(channels, c.shape(i)[0], "channels");
  }
  c.set_shape(0, x);
  for (std::size_t k = 1; k <= statistics; ++k) c.set_shape(k, {channels});
}

BatchNormShape shape_of(const PrepareContext& c) {
  const Dims& x = c.in(0).dims;
  BatchNormShape s{x[0], x.size() > 1 ? x[1] : 1, x.size() > 2 ? product(x, 2, x.size()) : 1};
  for (std::size_t i = 1; i <= 4; ++i) {
    c.require(c.in(i).size() == s.channels, "input ", i, ": got ", c.in(i).size(), " values, expected ", s.channels);
  }
  return s;
}

/// Parameters may be of another float type than X.
template <class T>
void widen_to(T* to, const void* from, DType dtype, std::int64_t n) {
  visit_real(dtype, [&]<class U>() {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(static_cast<const U*>(from)[i]);
  });
}

/// Outputs: Y, and where a model asks for them the running statistics, as they were: ONNX Runtime's eval models do.
Kernel prepare_inference(PrepareContext& c) {
  BatchNormShape s = shape_of(c);
  std::vector<DType> dtypes;
  for (const TensorInfo& t : c.inputs) dtypes.push_back(t.dtype);
  double epsilon = c.node.attr_float("epsilon", 1e-5F);
  std::size_t scratch = c.reserve(byte_size(dtypes[0], 4 * s.channels));
  std::size_t outputs = c.outputs.size();
  return [=](const KernelArgs& a) {
    for (std::size_t k = 1; k < outputs; ++k) {
      if (a.outputs[k] == nullptr) continue;
      visit_real(dtypes[3], [&]<class U>() { widen_to(a.out<U>(k), a.inputs[k + 2], dtypes[k + 2], s.channels); });
    }
    visit_real(dtypes[0], [&]<class T>() {
      T* p = reinterpret_cast<T*>(a.scratch + scratch);
      for (std::size_t i = 1; i <= 4; ++i) {
        widen_to(p + static_cast<std::int64_t>(i - 1) * s.channels, a.inputs[i], dtypes[i], s.channels);
      }
      fold_batch_norm(p, p + s.channels, p + 2 * s.channels, p + 3 * s.channels, s.channels, epsilon);
      apply_batch_norm(s, a.in<T>(0), p, p + s.channels, a.out<T>(0));
    });
  };
}

template <class T>
void store_as(DType dtype, void* to, std::int64_t i, T value) {
  if (to == nullptr) return;
  visit_real(dtype, [&]<class U>() { static_cast<U*>(to)[i] = static_cast<U>(value); });
}

/// Outputs: Y (BatchNormInternal may leave it out), running mean, running variance, and for BatchNormInternal batch
/// mean, batch inverse deviation.
Kernel prepare_training(PrepareContext& c) {
  BatchNormShape s = shape_of(c);
  std::vector<DType> dtypes;
  for (const TensorInfo& t : c.inputs) dtypes.push_back(t.dtype);
  DType stat_type = dtypes[3];
  double epsilon = c.node.attr_float("epsilon", 1e-5F);
  // A batch of nothing says nothing: running statistics stay as they are.
  const bool is_empty = c.in(0).size() == 0;
  double momentum = is_empty ? 1 : c.node.attr_float("momentum", 0.9F);
  std::size_t outputs = c.outputs.size();
  BatchStatistics statistics(s, dtypes[0]);
  std::size_t partial = c.reserve(statistics.scratch_bytes());
  std::size_t scratch = c.reserve(byte_size(dtypes[0], 6 * s.channels));
  return [=](const KernelArgs& a) {
    visit_real(dtypes[0], [&]<class T>() {
      std::int64_t n = s.channels;
      T* p = reinterpret_cast<T*>(a.scratch + scratch);
      T* mean = p + 4 * n;
      T* variance = p + 5 * n;  // and then its inverse root, as the gradient will read it
      for (std::size_t i = 1; i <= 4; ++i) {
        widen_to(p + static_cast<std::int64_t>(i - 1) * n, a.inputs[i], dtypes[i], n);
      }
      statistics.run(a.in<T>(0), mean, variance, a.scratch + partial);
      if (is_empty) std::fill_n(mean, 2 * n, T{0});  // where sums divided by no elements are not numbers
      auto out = [&](std::size_t k) { return k < outputs ? a.outputs[k] : nullptr; };
      for (std::int64_t i = 0; i < n; ++i) {
        auto m = static_cast<double>(mean[i]);
        auto v = static_cast<double>(variance[i]);
        store_as(stat_type, out(1), i, static_cast<double>(p[2 * n + i]) * momentum + m * (1 - momentum));
        store_as(stat_type, out(2), i, static_cast<double>(p[3 * n + i]) * momentum + v * (1 - momentum));
        store_as(stat_type, out(3), i, m);
        variance[i] = static_cast<T>(1 / std::sqrt(v + epsilon));
        store_as(stat_type, out(4), i, variance[i]);
      }
      if (out(0) == nullptr) return;
      fold_batch_norm(p, p + n, mean, variance, n);
      apply_batch_norm(s, a.in<T>(0), p, p + n, a.out<T>(0));
    });
  };
}

void infer(InferContext& c) { infer_with(c, 2); }

Kernel prepare(PrepareContext& c) {
  return c.node.attr_int("training_mode", 0) != 0 ? prepare_training(c) : prepare_inference(c);
}

const Register kOp({.name = "BatchNormalization",
                    .since = 15,
                    .doc = "channels to mean 0 and variance 1 by running or batch statistics, then scale and shift",
                    .inputs = {5, 5},
                    .outputs = {1, 3},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = batch_norm_gradient,
                    .fused_gradient = batch_norm_fused_gradient,
                    .half_through_float = true});

const Register kInternal({.name = "BatchNormInternal",
                          .domain = "com.microsoft",
                          .since = 1,
                          .doc = "batch normalisation in training, also giving the batch's own statistics",
                          .inputs = {5, 5},
                          .outputs = {1, 5},
                          .types = types::floats,
                          .infer = [](InferContext& c) { infer_with(c, 4); },
                          .prepare = prepare_training,
                          .gradient = batch_norm_gradient,
                          .fused_gradient = batch_norm_fused_gradient,
                          .half_through_float = true});

/// Until opset 13 asking for more than Y meant training; until opset 8 `spatial=0` normalised every position by itself.
void lift_before_14(Builder& b, Node& node) {
  bool wants_statistics = false;
  for (std::size_t k = 1; k < node.outputs.size(); ++k) wants_statistics |= node.outputs[k] != nullptr;
  for (std::size_t k = 3; k < node.outputs.size(); ++k) {
    if (node.outputs[k] != nullptr) {
      fail<Unsupported>(node.label(), " outputs saved_mean and saved_var of opsets before 14; use opset 14 or newer");
    }
  }
  if (node.outputs.size() > 3) node.outputs.resize(3);
  node.attributes["training_mode"] = static_cast<std::int64_t>(wants_statistics);
  bool spatial = node.attr_int("spatial", 1) != 0;
  node.attributes.erase("is_test");
  node.attributes.erase("spatial");
  if (spatial) return;
  if (wants_statistics) fail<Unsupported>(node.label(), " spatial=0 in training; use opset 9 or newer");
  Value* x = node.input(0);
  std::vector<Value*> inputs = {b.op("Flatten", {x}, {{"axis", std::int64_t{1}}})};
  for (std::size_t i = 1; i < node.inputs.size(); ++i)
    inputs.push_back(b.op("Reshape", {node.inputs[i], b.ints({-1})}));
  Value* y = b.op("BatchNormalization", inputs, {{"epsilon", node.attr_float("epsilon", 1e-5F)}});
  node.op = "Reshape";
  node.attributes.clear();
  node.attributes["allowzero"] = std::int64_t{1};
  b.graph.set_inputs(node, {y, b.op("Shape", {x})});
}

const RegisterAdapter kLift({.op = "BatchNormalization", .below = 14, .lift = lift_before_14});

}  // namespace
}  // namespace backpass
