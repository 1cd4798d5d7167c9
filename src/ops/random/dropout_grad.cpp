// Gradient of Dropout: ONNX Runtime's DropoutGrad, which reads the mask. Plans do without: the gradient is the same
// Dropout once more.
#include <utility>

#include "graph/halves.hpp"
#include "graph/op.hpp"
#include "graph/substitute.hpp"
#include "ops/random/dropout.hpp"
#include "ops/read_scalar.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

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
    if (r == 0) return dropout::keep_everything(a, byte_size(dtype, n), nullptr, n);
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

std::optional<double> known_scalar(const Value* v, double otherwise) {
  if (v == nullptr) return otherwise;
  if (!v->constant || v->constant->size() != 1 || v->constant->dtype() == DType::string) return std::nullopt;
  return read_scalar(v->constant->dtype(), v->constant->data());
}

/// Operands mean the same; each operator has its own meaning of leaving one out.
bool agree(const Value* a, double absent_a, const Value* b, double absent_b) {
  if (a != nullptr && a == b) return true;
  const std::optional<double> x = known_scalar(a, absent_a);
  return x && x == known_scalar(b, absent_b);
}

bool drops(const Node* node) {
  if (node == nullptr) return false;
  return node->op == "Dropout" ? node->domain.empty() : node->op == "RowDropout" && node->domain == "backpass";
}

/// The same operator, of what flows back: by the name of the first one it drops the same elements.
std::optional<Substitute> without_mask(const Node& reader, const Value& mask) {
  const Node* dropout = mask.producer;
  if (!drops(dropout)) return std::nullopt;
  const bool fits = dropout->output(1) == &mask && reader.input(1) == &mask && reader.input(0) != &mask &&
                    agree(reader.input(2), dropout::kDefaultRatio, dropout->input(1), dropout::kDefaultRatio) &&
                    agree(reader.input(3), 1, dropout->input(2), 0);
  if (!fits) return std::nullopt;
  std::vector<Value*> inputs(dropout->inputs.begin(), dropout->inputs.end());
  inputs[0] = reader.input(0);
  return Substitute{dropout->domain, dropout->op, name_of_copy(*dropout), std::move(inputs), dropout->attributes};
}

const RegisterSubstitute kWithout("com.microsoft", "DropoutGrad", without_mask);

}  // namespace
}  // namespace backpass
