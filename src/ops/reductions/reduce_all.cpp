// Questions about many tensors at once, as mixed precision training asks them: ReduceAllL2 (norm of all gradients),
// IsAllFinite.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "graph/op.hpp"
#include "kernels/reduce.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

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

}  // namespace
}  // namespace backpass
