// com.microsoft FusedGemm: Gemm followed by an activation.
#include <array>
#include <string>

#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

/// Activations and the attributes they take from activation_alpha, activation_beta, activation_gamma.
struct Known {
  std::string_view op;
  std::array<std::string_view, 2> attributes;
};
constexpr std::array<Known, 13> kActivations{{{"Relu", {}},
                                              {"Tanh", {}},
                                              {"Sigmoid", {}},
                                              {"Softplus", {}},
                                              {"Softsign", {}},
                                              {"HardSwish", {}},
                                              {"LeakyRelu", {"alpha"}},
                                              {"Elu", {"alpha"}},
                                              {"Celu", {"alpha"}},
                                              {"ThresholdedRelu", {"alpha"}},
                                              {"HardSigmoid", {"alpha", "beta"}},
                                              {"Selu", {"alpha", "gamma"}},
                                              {"Gelu", {}}}};

const Known& known_activation(const Node& node) {
  std::string name = node.attr_string("activation");
  for (const Known& k : kActivations) {
    if (k.op == name) return k;
  }
  fail<Unsupported>(node.label(), " activation '", name,
                    "' is not one that Backpass fuses; use Gemm and the activation");
}

void infer(InferContext& c) {
  known_activation(c.node);
  c.set_dtype(0, c.dtype(0));
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  const Known& activation = known_activation(node);
  AttributeList gemm;
  for (const char* key : {"alpha", "beta", "transA", "transB"}) {
    auto it = node.attributes.find(key);
    if (it != node.attributes.end()) gemm.emplace_back(key, it->second);
  }
  AttributeList attributes;
  for (std::string_view key : activation.attributes) {
    auto it = key.empty() ? node.attributes.end() : node.attributes.find(concat("activation_", key));
    if (it != node.attributes.end()) attributes.emplace_back(key, it->second);
  }
  Value* product = b.op("Gemm", node.inputs, gemm);
  return {b.op(activation.op, {product}, attributes)};
}

const Register fused_gemm{{.name = "FusedGemm",
                           .domain = "com.microsoft",
                           .since = 1,
                           .doc = "Gemm followed by an activation",
                           .inputs = {2, 3},
                           .types = types::floats,
                           .infer = infer,
                           .expand = expand}};

}  // namespace
}  // namespace backpass
