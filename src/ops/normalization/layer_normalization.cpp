// LayerNormalization, RMSNormalization and ONNX Runtime's SimplifiedLayerNormalization: each row (all axes from `axis`
// on) is brought to variance 1, and to mean 0 in the first of them, then scaled and shifted.
#include <algorithm>
#include <optional>

#include "graph/op.hpp"
#include "kernels/normalize.hpp"
#include "ops/axis_view.hpp"
#include "ops/normalization/layer_normalization_rule.hpp"
#include "ops/normalization/row_parameter.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// Attribute stash_type: the element type of mean and inverse deviation.
DType stash_type(const InferContext& c) {
  const std::int64_t code = c.node.attr_int("stash_type", 1);
  c.require(is_known_dtype(code) && is_float(static_cast<DType>(code)), "stash_type: got ", code,
            ", expected 1 (float32) or 16 (bfloat16)");
  return static_cast<DType>(code);
}

/// Y, then one output per entry of `statistics` with the shape of X where the normalised axes have extent 1.
void infer_rows(InferContext& c, DType y, std::size_t statistics) {
  DType stash = stash_type(c);
  c.set_dtype(0, y);
  for (std::size_t k = 1; k <= statistics; ++k) c.set_dtype(k, stash);
  for (std::size_t i = 1; i < c.input_count(); ++i) check_row_parameter(c, i);
  Shape shape = c.shape(0);
  std::size_t axis = c.axis(c.node.attr_int("axis", -1), shape.size());
  c.set_shape(0, shape);
  std::fill(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end(), Dim(1));
  for (std::size_t k = 1; k <= statistics; ++k) c.set_shape(k, shape);
}

/// Where a kernel of element type T puts one number per row, and how they reach an output of another float type.
struct Statistic {
  bool present = false;
  std::size_t output = 0;
  DType dtype = DType::undefined;
  std::optional<std::size_t> scratch;

  Statistic(PrepareContext& c, std::size_t k, DType row_type, std::int64_t rows) : present(c.has_output(k)), output(k) {
    if (!present) return;
    dtype = c.out(k).dtype;
    if (dtype != row_type) scratch = c.reserve(byte_size(row_type, rows));
  }
  template <class T>
  T* target(const KernelArgs& a) const {
    if (!present) return nullptr;
    return scratch ? reinterpret_cast<T*>(a.scratch + *scratch) : a.out<T>(output);
  }
  template <class T>
  void deliver(const KernelArgs& a, std::int64_t rows) const {
    if (!present || !scratch) return;
    visit_real(dtype, [&]<class U>() {
      std::transform(target<T>(a), target<T>(a) + rows, a.out<U>(output), [](T v) { return static_cast<U>(v); });
    });
  }
};

/// `mean` is the index of the output that takes the means, if any; likewise `inverse`.
Kernel prepare_rows(PrepareContext& c, bool centered, std::size_t mean_output, std::size_t inverse_output) {
  constexpr std::int64_t kWorkPerElement = 4;
  DType dtype = c.in(0).dtype;
  std::int64_t axis = c.node.attr_int("axis", -1);
  RowView v = row_view(c, axis);
  std::size_t first = c.axis(axis, c.in(0).dims.size());
  for (std::size_t i = 1; i < c.inputs.size(); ++i) {
    if (!c.has_input(i)) continue;
    c.require(c.in(i).dtype == dtype, "input ", i, ": got ", name_of(c.in(i).dtype), ", expected ", name_of(dtype),
              " as the input");
  }
  RowParameter scale = row_parameter(c, 1, first);
  RowParameter bias = row_parameter(c, 2, first);
  Statistic mean(c, mean_output, dtype, v.rows);
  Statistic inverse(c, inverse_output, dtype, v.rows);
  double epsilon = c.node.attr_float("epsilon", 1e-5F);
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      RowNorm<T> norm{v.n, epsilon, centered, scale.values<T>(a), bias.values<T>(a), scale.stride, bias.stride};
      T* means = mean.target<T>(a);
      T* inverses = inverse.target<T>(a);
      parallel_for(v.rows, grain_for(v.n * kWorkPerElement), [&](std::int64_t begin, std::int64_t end) {
        RowNorm<T> part = norm;
        if (part.scale != nullptr) part.scale += begin * norm.scale_stride;
        if (part.bias != nullptr) part.bias += begin * norm.bias_stride;
        normalize_rows(part, a.in<T>(0) + begin * v.n, a.out<T>(0) + begin * v.n, end - begin,
                       means == nullptr ? nullptr : means + begin, inverses == nullptr ? nullptr : inverses + begin);
      });
      mean.deliver<T>(a, v.rows);
      inverse.deliver<T>(a, v.rows);
    });
  };
}

constexpr std::size_t kNoOutput = 99;

void infer_layer_norm(InferContext& c) { infer_rows(c, c.dtype(0), 2); }
Kernel prepare_layer_norm(PrepareContext& c) { return prepare_rows(c, true, 1, 2); }
void infer_rms_norm(InferContext& c) { infer_rows(c, c.dtype(1), 0); }
Kernel prepare_rms_norm(PrepareContext& c) { return prepare_rows(c, false, kNoOutput, kNoOutput); }
void infer_simplified(InferContext& c) { infer_rows(c, c.dtype(1), 1); }
Kernel prepare_simplified(PrepareContext& c) { return prepare_rows(c, false, kNoOutput, 1); }

const Register kLayerNorm({.name = "LayerNormalization",
                           .since = 17,
                           .doc = "rows to mean 0 and variance 1, then scale and shift",
                           .inputs = {2, 3},
                           .outputs = {1, 3},
                           .types = types::floats,
                           .infer = infer_layer_norm,
                           .prepare = prepare_layer_norm,
                           .gradient = layer_norm_gradient,
                           .fused_gradient = layer_norm_fused_gradient,
                           .half_through_float = true,
                           .in_place_input = 0,
                           .is_one_pass = true});

const Register kRmsNorm({.name = "RMSNormalization",
                         .since = 23,
                         .doc = "rows divided by their root mean square, then scaled",
                         .inputs = {2, 2},
                         .types = types::floats,
                         .infer = infer_rms_norm,
                         .prepare = prepare_rms_norm,
                         .gradient = rms_norm_gradient,
                         .fused_gradient = rms_norm_fused_gradient,
                         .half_through_float = true,
                         .in_place_input = 0,
                         .is_one_pass = true});

OpDef simplified(std::string_view domain) {
  return {.name = "SimplifiedLayerNormalization",
          .domain = domain,
          .since = 1,
          .doc = "RMS normalisation that also gives the inverse root mean square",
          .inputs = {2, 2},
          .outputs = {1, 2},
          .types = types::floats,
          .infer = infer_simplified,
          .prepare = prepare_simplified,
          .gradient = rms_norm_gradient,
          .fused_gradient = rms_norm_fused_gradient,
          .half_through_float = true,
          .in_place_input = 0,
          .is_one_pass = true};
}

const Register kSimplified(simplified(""));
const Register kSimplifiedMicrosoft(simplified("com.microsoft"));

}  // namespace
}  // namespace backpass
