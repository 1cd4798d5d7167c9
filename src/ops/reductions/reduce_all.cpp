// Questions about many tensors at once, as mixed precision training asks them: ReduceAllL2 (norm of all gradients),
// IsAllFinite, IsFinite, MixedPrecisionScale.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "kernels/reduce.hpp"
#include "ops/read_scalar.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

void infer_norm(InferContext& c) {
  DType dtype = c.dtype(0);
  c.set(0, dtype == DType::float64 ? dtype : DType::float32, {});
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    c.require(c.dtype(i) == dtype, "input ", i, ": got ", name_of(c.dtype(i)), ", expected ", name_of(dtype));
  }
}

double sum_of_squares(const Reduction& plan, DType dtype, const void* x, std::byte* scratch) {
  double sum = 0;
  visit_float(dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      T square = 0;
      reduce(plan, dtype, x, nullptr, &square, scratch);
      sum = static_cast<double>(square);
    } else {
      const T* values = static_cast<const T*>(x);
      for (std::int64_t i = 0; i < plan.count; ++i) {
        auto v = static_cast<double>(static_cast<float>(values[i]));
        sum += v * v;
      }
    }
  });
  return sum;
}

Kernel prepare_norm(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::vector<Reduction> plans;
  std::size_t scratch_bytes = 0;
  for (const TensorInfo& t : c.inputs) {
    plans.push_back(plan_reduction(Dims{t.size()}, {true}, Fold::sum_square, Finish::none));
    scratch_bytes = std::max(scratch_bytes, plans.back().scratch_bytes());
  }
  std::size_t scratch = c.reserve(scratch_bytes);
  return [=](const KernelArgs& a) {
    double sum = 0;
    for (std::size_t i = 0; i < plans.size(); ++i)
      sum += sum_of_squares(plans[i], dtype, a.inputs[i], a.scratch + scratch);
    if (dtype == DType::float64) {
      *a.out<double>(0) = std::sqrt(sum);
    } else {
      *a.out<float>(0) = static_cast<float>(std::sqrt(sum));
    }
  };
}

const Register kNorm({.name = "ReduceAllL2",
                      .domain = "com.microsoft",
                      .doc = "Euclidean norm of all elements of all inputs",
                      .inputs = {1, -1},
                      .types = types::floats,
                      .infer = infer_norm,
                      .prepare = prepare_norm});

void infer_is_finite(InferContext& c) {
  c.set_dtype(0, DType::boolean);
  c.set_shape(0, c.shape(0));
}

Kernel prepare_is_finite(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  return [=](const KernelArgs& a) {
    visit_float(dtype, [&]<class T>() {
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          a.out<bool>(0)[i] = std::isfinite(static_cast<double>(a.in<T>(0)[i]));
      });
    });
  };
}

const Register kIsFinite({.name = "IsFinite",
                          .domain = "com.microsoft",
                          .doc = "true where an element is neither infinite nor NaN",
                          .types = types::floats,
                          .infer = infer_is_finite,
                          .prepare = prepare_is_finite});

void infer_is_all_finite(InferContext& c) {
  c.set(0, DType::boolean, {});
  bool both = c.node.attr_int("isinf_only", 0) != 0 && c.node.attr_int("isnan_only", 0) != 0;
  c.require(!both, "isinf_only and isnan_only are both set; set one of them at most");
}

Kernel prepare_is_all_finite(PrepareContext& c) {
  bool infinities = c.node.attr_int("isnan_only", 0) == 0;
  bool nans = c.node.attr_int("isinf_only", 0) == 0;
  std::vector<std::pair<DType, std::int64_t>> tensors;
  for (const TensorInfo& t : c.inputs) tensors.emplace_back(t.dtype, t.size());
  return [=](const KernelArgs& a) {
    bool good = true;
    for (std::size_t k = 0; good && k < tensors.size(); ++k) {
      visit_float(tensors[k].first, [&]<class T>() {
        const T* x = a.in<T>(k);
        for (std::int64_t i = 0; good && i < tensors[k].second; ++i) {
          auto v = static_cast<double>(x[i]);
          good = !((infinities && std::isinf(v)) || (nans && std::isnan(v)));
        }
      });
    }
    *a.out<bool>(0) = good;
  };
}

const Register kIsAllFinite({.name = "IsAllFinite",
                             .domain = "com.microsoft",
                             .doc = "true when no element of any input is infinite or NaN",
                             .inputs = {1, -1},
                             .types = types::floats,
                             .infer = infer_is_all_finite,
                             .prepare = prepare_is_all_finite});

/// MixedPrecisionScale(scale, x...) -> (x * scale cast to `to`)...
void infer_scale(InferContext& c) {
  std::int64_t code = c.node.attr_int("to");
  c.require(is_known_dtype(code) && is_float(static_cast<DType>(code)), "to: got ", code, ", expected a float type");
  c.require(c.node.attr_int("fuse_outputs", 0) == 0, "fuse_outputs=1 is not supported; use one output per input");
  c.require(c.outputs.size() + 1 == c.input_count(), "got ", c.outputs.size(), " outputs for ", c.input_count() - 1,
            " tensors, expected one each");
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, static_cast<DType>(code));
  for (std::size_t k = 0; k < c.outputs.size(); ++k) {
    if (c.knows_shape(k + 1)) c.set_shape(k, c.shape(k + 1));
  }
}

std::vector<Value*> expand_scale(Builder& b, const Node& node) {
  auto as = [&](Value* x, DType dtype) { return b.op("Cast", {x}, {{"to", static_cast<std::int64_t>(dtype)}}); };
  Value* scale = as(node.input(0), DType::float32);
  std::vector<Value*> out;
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    Value* product = b.op("Mul", {as(node.inputs[i], DType::float32), scale});
    out.push_back(as(product, static_cast<DType>(node.attr_int("to"))));
  }
  return out;
}

const Register kScale({.name = "MixedPrecisionScale",
                       .domain = "com.microsoft",
                       .doc = "tensors multiplied by one scale and cast",
                       .inputs = {2, -1},
                       .outputs = {1, -1},
                       .types = types::floats,
                       .infer = infer_scale,
                       .expand = expand_scale});

}  // namespace
}  // namespace backpass
