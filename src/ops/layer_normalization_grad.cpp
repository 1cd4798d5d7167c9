// Gradients of LayerNormalization and SimplifiedLayerNormalization, under the names ONNX Runtime gives them:
//   LayerNormalizationGrad(dy, x, scale, mean, inverse) -> dx, dscale, dbias
//   SimplifiedLayerNormalizationGrad(dy, x, scale, inverse) -> dx, dscale
//   InvertibleLayerNormalizationGrad(dy, y, scale, bias, inverse) -> dx, dscale, dbias
#include <array>

#include "kernels/reduce.hpp"
#include "ops/axis_view.hpp"
#include "ops/op.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum class Form : std::uint8_t { centered, simplified, invertible };

/// Index of input `inverse` (the row factor); for Form::centered the mean stands before it.
constexpr std::size_t inverse_input(Form form) { return form == Form::simplified ? 3 : 4; }

template <Form form>
void infer(InferContext& c) {
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, k == 0 ? c.dtype(0) : c.dtype(2));
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    c.require(types::floats.has(c.dtype(i)), "element type of input ", i, ": got ", name_of(c.dtype(i)),
              ", expected a float type");
  }
  c.require(c.rank(0) == c.rank(1), "rank of dY: got ", c.rank(0), ", expected ", c.rank(1), " as input 1 has");
  for (std::size_t i = 0; i < c.rank(1); ++i) c.unify(c.shape(0)[i], c.shape(1)[i], "extents of dY and input 1");
  c.set_shape(0, c.shape(1));
  c.axis(c.node.attr_int("axis", -1), c.rank(1));
  for (std::size_t k = 1; k < c.outputs.size(); ++k) c.set_shape(k, c.shape(2));
}

/// Row statistics may be of another float type (stash_type).
double statistic(const KernelArgs& a, std::size_t input, DType dtype, std::int64_t row) {
  return dtype == DType::float64 ? a.in<double>(input)[row] : static_cast<double>(a.in<float>(input)[row]);
}

/// The normalised row, before scale and bias.
template <Form form, class T>
void normalized_row(const KernelArgs& a, const DType* dtypes, std::int64_t row, std::int64_t n, T* out) {
  const T* x = a.in<T>(1) + row * n;
  if constexpr (form == Form::invertible) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] - a.in<T>(3)[i]) / a.in<T>(2)[i];
  } else {
    auto mean = form == Form::centered ? static_cast<T>(statistic(a, 3, dtypes[3], row)) : T{0};
    auto inverse = static_cast<T>(statistic(a, inverse_input(form), dtypes[inverse_input(form)], row));
    for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * inverse;
  }
}

/// dx = inverse * (g - mean(g) - z * mean(g * z)) with g = dy * scale and z the normalised row; products dy * z go to
/// `dscale_row`, for the sum over rows.
template <Form form, class T>
void gradient_row(const T* dy, const T* scale, double inverse, std::int64_t n, T* z, T* dx) {
  double mean_g = 0;
  double mean_gz = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double g = static_cast<double>(dy[i]) * static_cast<double>(scale[i]);
    mean_g += g;
    mean_gz += g * static_cast<double>(z[i]);
  }
  mean_g = form == Form::simplified ? 0 : mean_g / static_cast<double>(n);
  mean_gz /= static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    T g = dy[i] * scale[i];
    T product = dy[i] * z[i];
    dx[i] = (g - static_cast<T>(mean_g) - z[i] * static_cast<T>(mean_gz)) * static_cast<T>(inverse);
    z[i] = product;
  }
}

template <Form form>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  RowView v = row_view(c, c.node.attr_int("axis", -1), 1);
  c.require(c.in(0).dims == c.in(1).dims, "got shapes ", shown(c.in(0).dims), " and ", shown(c.in(1).dims),
            ", expected the same");
  c.require(c.in(2).size() == v.n, "scale: got ", c.in(2).size(), " values, expected ", v.n);
  c.require(form != Form::invertible || c.in(3).size() == v.n, "bias: expected ", v.n, " values");
  c.require(form != Form::centered || c.in(3).size() == v.rows, "mean: expected ", v.rows, " values, one per row");
  c.require(c.in(inverse_input(form)).size() == v.rows, "inverse deviation: expected ", v.rows, " values, one per row");
  std::array<DType, 5> dtypes{};
  for (std::size_t i = 0; i < c.inputs.size(); ++i) dtypes[i] = c.in(i).dtype;
  Reduction columns = plan_reduction(Dims{v.rows, v.n}, {true, false}, Fold::sum, Finish::none);
  std::size_t partial = c.reserve(columns.scratch_bytes());
  std::size_t scratch = c.reserve(byte_size(dtype, v.rows * v.n));
  bool wants_scale = c.has_output(1);
  bool wants_bias = c.has_output(2);
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      T* z = reinterpret_cast<T*>(a.scratch + scratch);
      parallel_for(v.rows, grain_for(v.n * 4), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          std::int64_t at = row * v.n;
          double inverse = statistic(a, inverse_input(form), dtypes[inverse_input(form)], row);
          normalized_row<form>(a, dtypes.data(), row, v.n, z + at);
          gradient_row<form>(a.in<T>(0) + at, a.in<T>(2), inverse, v.n, z + at, a.out<T>(0) + at);
        }
      });
      if (wants_scale) reduce(columns, dtype, z, nullptr, a.outputs[1], a.scratch + partial);
      if (wants_bias) reduce(columns, dtype, a.inputs[0], nullptr, a.outputs[2], a.scratch + partial);
    });
  };
}

template <Form form>
OpDef definition(std::string_view name, std::string_view doc) {
  constexpr int kInputs = form == Form::simplified ? 4 : 5;
  return {.name = name,
          .domain = "com.microsoft",
          .doc = doc,
          .inputs = {kInputs, kInputs},
          .outputs = {1, form == Form::simplified ? 2 : 3},
          .types = types::floats,
          .infer = infer<form>,
          .prepare = prepare<form>,
          .half_through_float = true};
}

const Register kCentered(definition<Form::centered>("LayerNormalizationGrad", "gradient of LayerNormalization"));
const Register kSimplified(definition<Form::simplified>("SimplifiedLayerNormalizationGrad",
                                                        "gradient of SimplifiedLayerNormalization"));
const Register kInvertible(definition<Form::invertible>("InvertibleLayerNormalizationGrad",
                                                        "gradient of LayerNormalization from its output"));

}  // namespace
}  // namespace backpass
