// Dropout, ONNX Runtime's BiasDropout: elements set to 0 with probability `ratio`, the others scaled up.
#include "ops/random/dropout.hpp"

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/random/dropout_rule.hpp"
#include "ops/read_scalar.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {

void dropout::infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  if (c.has_input(2))
    c.require(c.dtype(2) == DType::boolean, "training_mode: got ", name_of(c.dtype(2)), ", expected bool");
  c.set_shape(0, c.shape(0));
  c.set_shape(1, c.shape(0));
}

namespace {

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
    if (r == 0) return dropout::keep_everything(a, byte_size(dtype, n), mask, n);
    const Philox random = stream.next();
    visit_float(dtype, [&]<class T>() {
      parallel_for(n, dropout::kGrain, [&](std::int64_t begin, std::int64_t end) {
        dropout::drop(random, r, begin, end - begin, a.in<T>(0) + begin, a.out<T>(0) + begin,
                      mask == nullptr ? nullptr : mask + begin);
      });
    });
  };
}

const Register kDropout({.name = "Dropout",
                         .since = 22,
                         .doc = "elements set to 0 at random, the others scaled up (training); identity (inference)",
                         .inputs = {1, 3},
                         .outputs = {1, 2},
                         .types = types::floats | types::float8s,
                         .infer = dropout::infer,
                         .prepare = prepare,
                         .gradient = dropout::gradient,
                         .fused_gradient = dropout::fused_gradient,
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
