// Dropout, ONNX Runtime's BiasDropout, DropoutGrad: elements set to 0 with probability `ratio`, the others scaled up.
#include <cstring>

#include "gradient/forward_output.hpp"
#include "graph/builder.hpp"
#include "ops/op.hpp"
#include "ops/read_scalar.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/random_seed.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 13;  // a multiple of the four elements that share a block of random bits
constexpr double kDefaultRatio = 0.5;

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  if (c.has_input(2))
    c.require(c.dtype(2) == DType::boolean, "training_mode: got ", name_of(c.dtype(2)), ", expected bool");
  c.set_shape(0, c.shape(0));
  c.set_shape(1, c.shape(0));
}

double checked_ratio(double ratio, const std::string& where) {
  if (!(ratio >= 0 && ratio < 1)) fail(where, " ratio: got ", ratio, ", expected [0, 1)");
  return ratio;
}

template <class T>
void drop(const Philox& random, double ratio, std::int64_t n, const T* x, T* y, bool* mask) {
  auto threshold = static_cast<std::uint64_t>(ratio * 0x1p32);
  auto scale = static_cast<float>(1 / (1 - ratio));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Philox::Block bits{};
    for (std::int64_t i = begin; i < end; ++i) {
      if (i % 4 == 0) bits = random.block(static_cast<std::uint64_t>(i) / 4);
      bool keep = bits[static_cast<std::size_t>(i % 4)] >= threshold;
      if constexpr (sizeof(T) == 8) {
        y[i] = keep ? x[i] / (1 - ratio) : 0;
      } else {
        y[i] = keep ? T(static_cast<float>(x[i]) * scale) : T(0.0F);
      }
      if (mask != nullptr) mask[i] = keep;
    }
  });
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  ScalarInput ratio(c, 1, kDefaultRatio);
  ScalarInput training(c, 2, 0);
  std::optional<std::uint64_t> seed;
  if (c.node.has_attribute("seed")) seed = static_cast<std::uint64_t>(c.node.attr_int("seed", 0));
  RandomStream stream(seed, c.node.name.empty() && c.node.output(0) != nullptr ? c.node.output(0)->name : c.node.name);
  bool wants_mask = c.has_output(1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    bool* mask = wants_mask ? a.out<bool>(1) : nullptr;
    double r = training.read(a) == 0 ? 0 : checked_ratio(ratio.read(a), where);
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

void gradient(GradientContext& g) {
  g.set_zero(1);
  if (is_identity(g.node)) return g.set(0, g.dy());
  Value* ratio = g.has_input(1) ? g.cast_like(g.x(1), g.dy()) : g.number(kDefaultRatio);
  Value* scale = g.where(g.x(2), g.reciprocal(g.sub(g.one(), ratio)), g.one());
  g.set(0, g.where(mask_of(g), g.mul(g.dy(), scale), g.zero()));
}

void fused_gradient(GradientContext& g) {
  if (is_identity(g.node)) return gradient(g);
  g.set_zero(1);
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
                         .is_random = true});

/// Until opset 9 the mask had the element type of the data.
void lift_before_10(Builder&, Node& node) {
  if (node.output(1) != nullptr) {
    fail<Unsupported>(node.label(),
                      " output mask of opsets before 10; drop it (it is all ones) or use opset 10 or newer");
  }
}

/// Until opset 11 ratio was an attribute, and the operator the identity.
void lift_before_12(Builder&, Node& node) {
  node.attributes.clear();
  node.inputs.resize(1);
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

/// DropoutGrad(dy, mask, ratio, training_mode)
void infer_grad(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == DType::boolean, "mask: got ", name_of(c.dtype(1)), ", expected bool");
}

Kernel prepare_grad(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  c.require(c.in(1).size() == n, "mask: got ", shown(c.in(1).dims), ", expected ", shown(c.in(0).dims));
  ScalarInput ratio(c, 2, kDefaultRatio);
  ScalarInput training(c, 3, 1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    double r = training.read(a) == 0 ? 0 : checked_ratio(ratio.read(a), where);
    const bool* mask = a.in<bool>(1);
    visit_real(dtype, [&]<class T>() {
      auto scale = static_cast<T>(1 / (1 - r));
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) a.out<T>(0)[i] = mask[i] || r == 0 ? a.in<T>(0)[i] * scale : T{0};
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

}  // namespace
}  // namespace backpass
