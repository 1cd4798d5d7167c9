// Gradients of LayerNormalization and SimplifiedLayerNormalization, under the names ONNX Runtime gives them:
//   LayerNormalizationGrad(dy, x, scale, mean, inverse) -> dx, dscale, dbias
//   SimplifiedLayerNormalizationGrad(dy, x, scale, inverse) -> dx, dscale
//   InvertibleLayerNormalizationGrad(dy, y, scale, bias, inverse) -> dx, dscale, dbias
#include <algorithm>
#include <array>

#include "graph/op.hpp"
#include "kernels/reduce.hpp"
#include "ops/axis_view.hpp"
#include "ops/normalization/normalize_grad.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using Form = RowNormForm;

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
template <class T>
void read_statistics(const KernelArgs& a, std::size_t input, DType dtype, std::int64_t row, std::int64_t count,
                     T* out) {
  visit_real(dtype, [&]<class S>() {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(a.in<S>(input)[row + i]);
  });
}

/// Rows whose parameter gradients are added up together.
std::int64_t rows_of_chunk(std::int64_t n) {
  constexpr std::int64_t kWork = 1 << 15;
  constexpr std::int64_t kFewest = 4;
  return std::clamp(kWork / std::max<std::int64_t>(n, 1) / kFewest * kFewest, kFewest, kRowNormGradRows);
}

/// Rows [begin, end), one chunk: dx, and the chunk's share of the other gradients.
template <Form form, class T>
void gradient_chunk(const KernelArgs& a, const DType* dtypes, std::int64_t n, std::int64_t begin, std::int64_t end,
                    T* dscale, T* dbias) {
  T mean[kRowNormGradRows];
  T inverse[kRowNormGradRows];
  if (form == Form::centered) read_statistics(a, 3, dtypes[3], begin, end - begin, mean);
  read_statistics(a, inverse_input(form), dtypes[inverse_input(form)], begin, end - begin, inverse);
  RowNormGrad<T> p{form, n, a.in<T>(2)};
  if (form == Form::invertible) p.bias = a.in<T>(3);
  const std::int64_t at = begin * n;
  row_norm_grad(p, end - begin, a.in<T>(0) + at, a.in<T>(1) + at, form == Form::centered ? mean : nullptr, inverse,
                a.out<T>(0) + at, dscale, dbias);
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
  const std::int64_t chunk = rows_of_chunk(v.n);
  const std::int64_t chunks = (v.rows + chunk - 1) / chunk;
  Reduction columns = plan_reduction(Dims{chunks, v.n}, {true, false}, Fold::sum, Finish::none);
  std::size_t partial = c.reserve(columns.scratch_bytes());
  std::size_t shares = c.reserve(byte_size(dtype, 2 * chunks * v.n));
  bool wants_scale = c.has_output(1);
  bool wants_bias = c.has_output(2);
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      T* dscale = reinterpret_cast<T*>(a.scratch + shares);
      T* dbias = dscale + chunks * v.n;
      parallel_for(v.rows, chunk, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t at = begin / chunk * v.n;
        gradient_chunk<form>(a, dtypes.data(), v.n, begin, end, dscale + at, dbias + at);
      });
      if (wants_scale) reduce(columns, dtype, dscale, nullptr, a.outputs[1], a.scratch + partial);
      if (wants_bias) reduce(columns, dtype, dbias, nullptr, a.outputs[2], a.scratch + partial);
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
