// ai.onnx.preview.training Adagrad, Adam, Momentum: (rate, step count, weights..., gradients..., states...) -> new
// weights and states, for any number of tensors at once.
#include <cmath>

#include "graph/op.hpp"
#include "ops/read_scalar.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 13;

/// `states` tensors of state per weight: inputs come in 2 + states groups after the two scalars, outputs in 1 + states.
template <std::size_t states>
void infer(InferContext& c) {
  std::size_t given = c.input_count() < 2 ? 0 : c.input_count() - 2;
  std::size_t tensors = given / (2 + states);
  c.require(tensors * (2 + states) == given && c.outputs.size() == tensors * (1 + states), "got ", given,
            " tensors in and ", c.outputs.size(), " out, expected ", 2 + states, " in and ", 1 + states,
            " out for each weight");
  auto source = [&](std::size_t k) { return k < tensors ? 2 + k : 2 + tensors + k; };  // gradients have no output
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, c.dtype(source(k)));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) {
    if (c.knows_shape(source(k))) c.set_shape(k, c.shape(source(k)));
  }
}

/// f<T>(rate, count, i, n, args, tensors) updates weight number i.
template <std::size_t states, class F>
Kernel prepare_with(PrepareContext& c, F update) {
  std::size_t tensors = (c.inputs.size() - 2) / (2 + states);
  std::vector<std::int64_t> sizes;
  std::vector<DType> dtypes;
  for (std::size_t i = 0; i < tensors; ++i) {
    const TensorInfo& w = c.in(2 + i);
    sizes.push_back(w.size());
    dtypes.push_back(w.dtype);
    for (std::size_t group = 1; group < 2 + states; ++group) {
      const TensorInfo& t = c.in(2 + group * tensors + i);
      c.require(t.dims == w.dims && t.dtype == w.dtype, "tensor ", 2 + group * tensors + i, ": got ", name_of(t.dtype),
                shown(t.dims), ", expected ", name_of(w.dtype), shown(w.dims));
    }
  }
  ScalarInput rate(c, 0, 0), count(c, 1, 0);
  return [=](const KernelArgs& a) {
    double r = rate.read(a);
    double t = count.read(a);
    for (std::size_t i = 0; i < tensors; ++i) {
      visit_real(dtypes[i], [&]<class T>() {
        parallel_for(sizes[i], kGrain, [&](std::int64_t begin, std::int64_t end) {
          auto in = [&](std::size_t group) { return a.in<T>(2 + group * tensors + i); };
          auto out = [&](std::size_t group) { return a.out<T>(group * tensors + i); };
          for (std::int64_t k = begin; k < end; ++k) update.template operator()<T>(r, t, k, in, out);
        });
      });
    }
  };
}

Kernel prepare_adagrad(PrepareContext& c) {
  double decay = c.node.attr_float("decay_factor", 0);
  double epsilon = c.node.attr_float("epsilon", 1e-6F);
  double norm = c.node.attr_float("norm_coefficient", 0);
  return prepare_with<1>(c, [=]<class T>(double rate, double t, std::int64_t k, const auto& in, const auto& out) {
    double x = static_cast<double>(in(0)[k]);
    double g = norm * x + static_cast<double>(in(1)[k]);
    double h = static_cast<double>(in(2)[k]) + g * g;
    out(0)[k] = static_cast<T>(x - rate / (1 + t * decay) * g / (std::sqrt(h) + epsilon));
    out(1)[k] = static_cast<T>(h);
  });
}

Kernel prepare_adam(PrepareContext& c) {
  double alpha = c.node.attr_float("alpha", 0.9F);
  double beta = c.node.attr_float("beta", 0.999F);
  double epsilon = c.node.attr_float("epsilon", 1e-6F);
  double norm = c.node.attr_float("norm_coefficient", 0);
  double norm_post = c.node.attr_float("norm_coefficient_post", 0);
  return prepare_with<2>(c, [=]<class T>(double rate, double t, std::int64_t k, const auto& in, const auto& out) {
    double x = static_cast<double>(in(0)[k]);
    double g = norm * x + static_cast<double>(in(1)[k]);
    double v = alpha * static_cast<double>(in(2)[k]) + (1 - alpha) * g;
    double h = beta * static_cast<double>(in(3)[k]) + (1 - beta) * g * g;
    double adjusted = t > 0 ? rate * std::sqrt(1 - std::pow(beta, t)) / (1 - std::pow(alpha, t)) : rate;
    out(0)[k] = static_cast<T>((1 - norm_post) * (x - adjusted * v / (std::sqrt(h) + epsilon)));
    out(1)[k] = static_cast<T>(v);
    out(2)[k] = static_cast<T>(h);
  });
}

void infer_momentum(InferContext& c) {
  std::string mode = c.node.attr_string("mode");
  c.require(mode == "standard" || mode == "nesterov", "mode: got ", printable(mode),
            ", expected 'standard' or 'nesterov'");
  infer<1>(c);
}

Kernel prepare_momentum(PrepareContext& c) {
  double alpha = c.node.attr_float("alpha", 0);
  double beta = c.node.attr_float("beta", 0);
  double norm = c.node.attr_float("norm_coefficient", 0);
  bool nesterov = c.node.attr_string("mode") == "nesterov";
  return prepare_with<1>(c, [=]<class T>(double rate, double t, std::int64_t k, const auto& in, const auto& out) {
    double x = static_cast<double>(in(0)[k]);
    double g = norm * x + static_cast<double>(in(1)[k]);
    double v = alpha * static_cast<double>(in(2)[k]) + (t > 0 ? beta : 1) * g;
    out(0)[k] = static_cast<T>(x - rate * (nesterov ? g + alpha * v : v));
    out(1)[k] = static_cast<T>(v);
  });
}

OpDef definition(std::string_view name, std::string_view doc, void (*infer)(InferContext&),
                 Kernel (*prepare)(PrepareContext&)) {
  return {.name = name,
          .domain = "ai.onnx.preview.training",
          .doc = doc,
          .inputs = {3, -1},
          .outputs = {1, -1},
          .types = types::reals,
          .infer = infer,
          .prepare = prepare};
}

const Register kAdagrad(definition("Adagrad", "one Adagrad step", infer<1>, prepare_adagrad));
const Register kAdam(definition("Adam", "one Adam step", infer<2>, prepare_adam));
const Register kMomentum(definition("Momentum", "one step of gradient descent with momentum", infer_momentum,
                                    prepare_momentum));

}  // namespace
}  // namespace backpass
