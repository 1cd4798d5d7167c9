// Dropout, ONNX Runtime's BiasDropout: elements set to 0 with probability `ratio`, the others scaled up.
#include "ops/random/dropout.hpp"

#include <cstring>
#include <type_traits>

#include "gradient/forward_output.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/read_scalar.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  if (c.has_input(2))
    c.require(c.dtype(2) == DType::boolean, "training_mode: got ", name_of(c.dtype(2)), ", expected bool");
  c.set_shape(0, c.shape(0));
  c.set_shape(1, c.shape(0));
}

template <class T>
void drop(const Philox& random, double ratio, std::int64_t n, const T* x, T* y, bool* mask) {
  using Real = std::conditional_t<sizeof(T) == 8, double, float>;
  auto scale = static_cast<Real>(1 / (1 - ratio));
  if constexpr (std::is_same_v<T, float>) {
    if (mask == nullptr) return dropout::keep_all_scaled(random, ratio, n, scale, x, y);
  }
  dropout::for_each_element(random, ratio, n, [=](std::int64_t i, bool keep) {
    y[i] = keep ? T(static_cast<Real>(x[i]) * scale) : T(Real{0});
    if (mask != nullptr) mask[i] = keep;
  });
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  ScalarInput ratio(c, 1, dropout::kDefaultRatio);
  ScalarInput training(c, 2, 0);
  RandomStream stream(dropout::seed_of(c.node), dropout::stream_name(c.node));
  bool wants_mask = c.has_output(1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    bool* mask = wants_mask ? a.out<bool>(1) : nullptr;
    double r = training.read(a) == 0 ? 0 : dropout::checked_ratio(ratio.read(a), where);
    if (r == 0) {
      if (a.outputs[0] != a.inputs[0]) std::memcpy(a.outputs[0], a.inputs[0], byte_size(dtype, n));
      if (mask != nullptr) std::memset(mask, 1, static_cast<std::size_t>(n));
      return;
    }
    visit_float(dtype, [&]<class T>() { drop(stream.next(), r, n, a.in<T>(0), a.out<T>(0), mask); });
  };
}

/// Without training_mode, or with a constant false, it is the identity.
bool is_identity(const Node& node) {
  const Value* training = node.input(2);
  return training == nullptr || (training->constant && !training->constant->as<bool>()[0]);
}

Value* mask_of(GradientContext& g) { return forward_output(g, 1, Type::tensor(DType::boolean, g.x(0)->type.shape)); }

/// y = mask * x / (1 - ratio): the elements that are kept grow with the ratio; which ones they are is left to chance.
void set_ratio(GradientContext& g) {
  if (!g.wants(1)) return;
  if (is_identity(g.node)) return g.set_zero(1);
  Value* ratio = g.cast_like(g.x(1), g.dy());
  Value* growth = g.div(g.sum(g.reshape(g.mul(g.dy(), g.y()), {-1}), {0}, false), g.sub(g.one(), ratio));
  g.set(1, g.cast_like(g.reshape_like(g.where(g.x(2), growth, g.zero()), g.x(1)), g.x(1)));
}

void gradient(GradientContext& g) {
  set_ratio(g);
  if (is_identity(g.node)) return g.set(0, g.dy());
  Value* ratio = g.has_input(1) ? g.cast_like(g.x(1), g.dy()) : g.number(dropout::kDefaultRatio);
  Value* scale = g.where(g.x(2), g.reciprocal(g.sub(g.one(), ratio)), g.one());
  g.set(0, g.where(mask_of(g), g.mul(g.dy(), scale), g.zero()));
}

void fused_gradient(GradientContext& g) {
  if (is_identity(g.node)) return gradient(g);
  set_ratio(g);
  g.set(0, g.op("DropoutGrad", {g.dy(), mask_of(g), g.node.input(1), g.node.input(2)}, {}, "com.microsoft"));
}

const Register kDropout({.name = "Dropout",
                         .since = 22,
                         .doc = "elements set to 0 at random, the others scaled up (training); identity (inference)",
                         .inputs = {1, 3},
                         .outputs = {1, 2},
                         .types = types::floats | types::float8s,
                         .infer = infer,
                         .prepare = prepare,
                         .gradient = gradient,
                         .fused_gradient = fused_gradient,
                         .in_place_input = 0,
                         .is_one_pass = true,
                         .is_random = true});

/// Until opset 9 the mask had the element type of the data.
void lift_before_10(Builder&, Node& node) {
  if (node.output(1) != nullptr) {
    fail<Unsupported>(node.label(),
                      " output mask of opsets before 10; drop it (it is all ones) or use opset 10 or newer");
  }
}

/// Until opset 11 ratio was an attribute, and the operator the identity.
void lift_before_12(Builder& b, Node& node) {
  node.attributes.clear();
  b.graph.set_inputs(node, {node.input(0)});
}

const RegisterAdapter kMaskType({.op = "Dropout", .below = 10, .lift = lift_before_10});
const RegisterAdapter kRatio({.op = "Dropout", .below = 12, .lift = lift_before_12});

/// BiasDropout(data, bias, residual, ratio, training_mode) = Dropout(data + bias) + residual.
void infer_bias_dropout(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  c.set_shape(0, c.shape(0));
  c.set_shape(1, c.shape(0));
}

std::vector<Value*> expand_bias_dropout(Builder& b, const Node& node) {
  AttributeList attributes;
  if (node.has_attribute("seed")) attributes.emplace_back("seed", node.attr_int("seed"));
  Value* sum = b.op("Add", {node.input(0), node.input(1)});
  std::vector<Value*> dropped = b.ops("Dropout", {sum, node.input(3), node.input(4)}, 2, attributes);
  if (node.input(2) != nullptr) dropped[0] = b.op("Add", {dropped[0], node.input(2)});
  return dropped;
}

const Register kBiasDropout({.name = "BiasDropout",
                             .domain = "com.microsoft",
                             .doc = "dropout of data + bias, plus a residual",
                             .inputs = {2, 5},
                             .outputs = {1, 2},
                             .types = types::floats,
                             .infer = infer_bias_dropout,
                             .expand = expand_bias_dropout,
                             .is_random = true});

}  // namespace
}  // namespace backpass
