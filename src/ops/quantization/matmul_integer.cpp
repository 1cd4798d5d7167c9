// MatMulInteger and QLinearMatMul: products of quantized matrices.
#include <algorithm>
#include <cmath>
#include <vector>

#include "graph/op.hpp"
#include "kernels/gemm.hpp"
#include "ops/linear/product.hpp"
#include "ops/quantization/quantized.hpp"
#include "ops/shape_rules.hpp"
#include "support/convert.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kBytes{DType::int8, DType::uint8};
constexpr DTypeSet kFloat8{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz};
enum Input : std::size_t { kA, kAScale, kAZero, kB, kBScale, kBZero, kYScale, kYZero };

/// Extents of a per-row parameter of the left operand: a vector of M belongs to rows.
Dims as_rows(Dims parameter, bool left) {
  if (left && parameter.size() == 1 && parameter[0] != 1) parameter.push_back(1);
  return parameter;
}

void check_parameter(InferContext& c, std::size_t input, const Shape& operand, bool left) {
  if (!c.has_input(input) || !c.knows_shape(input) || !is_known(c.shape(input)) || !is_known(operand)) return;
  Dims shape = as_rows(to_dims(c.shape(input)), left);
  bool fits = shape.size() <= std::max<std::size_t>(operand.size(), 1);
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    std::size_t axis = operand.size() - shape.size() + i;
    fits = shape[i] == 1 || (axis < operand.size() && shape[i] == operand[axis].value());
    if (shape[i] != 1 && axis + (left ? 1 : 2) == operand.size()) fits = false;  // may not vary along the inner extent
  }
  c.require(fits, "input ", input, " is ", shown(c.shape(input)), ": expected one number or one per ",
            left ? "row" : "column", " of the operand ", shown(operand));
}

/// Strides that read a parameter of an operand while walking over it.
Dims parameter_strides(const TensorInfo& parameter, const Dims& operand, bool left) {
  return broadcast_strides(parameter.size() == 1 ? Dims{} : as_rows(parameter.dims, left), operand);
}

void infer_integer(InferContext& c) {
  c.set_dtype(0, DType::int32);
  c.require(kBytes.has(c.dtype(1)), "B has element type ", name_of(c.dtype(1)), ": expected ", shown(kBytes));
  for (std::size_t i : {2U, 3U}) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == c.dtype(i - 2), "zero point (input ", i, ") has element type ", name_of(c.dtype(i)),
              ": expected ", name_of(c.dtype(i - 2)));
    check_parameter(c, i, c.shape(i - 2), i == 2);
  }
  c.set_shape(0, matmul_shape(c, c.shape(0), c.shape(1)));
}

Kernel prepare_integer(PrepareContext& c) {
  TensorInfo a = c.in(0);
  TensorInfo b = c.in(1);
  GemmBatch g = plan_product(StridedView::of(a.dims), StridedView::of(b.dims), StridedView::of(c.out(0).dims));
  bool has_a = c.has_input(2);
  bool has_b = c.has_input(3);
  Dims a_strides = has_a ? parameter_strides(c.in(2), a.dims, true) : Dims(a.dims.size(), 0);
  Dims b_strides = has_b ? parameter_strides(c.in(3), b.dims, false) : Dims(b.dims.size(), 0);
  std::size_t a_at = c.reserve(static_cast<std::size_t>(a.size()) * 4);
  std::size_t b_at = c.reserve(static_cast<std::size_t>(b.size()) * 4);
  return [=](const KernelArgs& args) {
    auto* a32 = reinterpret_cast<std::uint32_t*>(args.scratch + a_at);
    auto* b32 = reinterpret_cast<std::uint32_t*>(args.scratch + b_at);
    center(a.dtype, args.inputs[0], a.dims, has_a ? args.inputs[2] : nullptr, a_strides, a32);
    center(b.dtype, args.inputs[1], b.dims, has_b ? args.inputs[3] : nullptr, b_strides, b32);
    batched_integer_gemm<std::uint32_t>(g, a32, b32, args.out<std::uint32_t>(0));
  };
}

const Register matmul_integer{{.name = "MatMulInteger",
                               .since = 10,
                               .doc = "matrix product of 8-bit integers with zero points, 32-bit result",
                               .inputs = {2, 4},
                               .types = kBytes,
                               .infer = infer_integer,
                               .prepare = prepare_integer}};

void infer_qlinear(InferContext& c) {
  for (std::size_t i : {kB, kYZero}) {
    c.require((kBytes | kFloat8).has(c.dtype(i)), "input ", std::size_t{i}, " has element type ", name_of(c.dtype(i)),
              ": expected ", (kBytes | kFloat8).str());
  }
  c.set_dtype(0, c.dtype(kYZero));
  c.require(c.dtype(kAZero) == c.dtype(kA) && c.dtype(kBZero) == c.dtype(kB), "zero points have element types ",
            name_of(c.dtype(kAZero)), " and ", name_of(c.dtype(kBZero)), ": expected those of the operands, ",
            name_of(c.dtype(kA)), " and ", name_of(c.dtype(kB)));
  Shape y = matmul_shape(c, c.shape(kA), c.shape(kB));
  for (std::size_t i : {kAScale, kAZero}) check_parameter(c, i, c.shape(kA), true);
  for (std::size_t i : {kBScale, kBZero}) check_parameter(c, i, c.shape(kB), false);
  for (std::size_t i : {kYScale, kYZero}) {
    c.require(!c.knows_shape(i) || !product(c.shape(i)).is_known() || product(c.shape(i)).is(1), "input ",
              std::size_t{i}, " is ", shown(c.shape(i)), ": expected one number");
  }
  c.set_shape(0, std::move(y));
}

/// An operand as float64 with its zero point taken away; exact for all 8-bit formats,
/// and so are sums of their products.
struct Dequantize {
  Dims dims;
  Dims strides;  ///< of the zero point
  Conversion widen;
  std::int64_t zeros;

  void run(const void* x, const void* zero, double* out, double* zero_out) const {
    std::int64_t count = element_count(dims);
    widen.parallel(x, out, count);
    widen.serial(zero, zero_out, zeros);
    std::int64_t cols = dims.empty() ? 1 : dims.back();
    for (std::int64_t r = 0; r < (cols == 0 ? 0 : count / cols); ++r) {
      std::int64_t at = 0;
      std::int64_t rest = r;
      for (std::size_t axis = dims.size() - 1; axis-- > 0; rest /= dims[axis]) at += rest % dims[axis] * strides[axis];
      for (std::int64_t j = 0; j < cols; ++j) out[r * cols + j] -= zero_out[at + j * strides.back()];
    }
  }
};

/// y = (a_scale b_scale / y_scale) * sums, rounded when the result is an integer, plus the zero point; element by
/// element.
struct Finish {
  Dims dims;
  Dims a_strides, b_strides;
  bool integer;
  float low, high;

  void run(double* sums, const float* a_scale, const float* b_scale, float y_scale, float zero) const {
    std::int64_t count = element_count(dims);
    parallel_for(count, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t a = 0;
        std::int64_t b = 0;
        std::int64_t rest = i;
        for (std::size_t axis = dims.size(); axis-- > 0; rest /= dims[axis]) {
          a += rest % dims[axis] * a_strides[axis];
          b += rest % dims[axis] * b_strides[axis];
        }
        float scaled = static_cast<float>(sums[i]) * (a_scale[a] * b_scale[b] / y_scale);
        sums[i] = integer ? std::clamp(std::nearbyint(scaled) + zero, low, high) : scaled + zero;
      }
    });
  }
};

/// Strides over the output for a scale of the left or right operand.
Dims scale_strides(const TensorInfo& scale, const Dims& y, bool left) {
  if (scale.size() == 1) return Dims(y.size(), 0);
  Dims dims = as_rows(scale.dims, left);
  return broadcast_strides(dims, y);
}

Kernel prepare_qlinear(PrepareContext& c) {
  TensorInfo a = c.in(kA);
  TensorInfo b = c.in(kB);
  TensorInfo y = c.out(0);
  GemmBatch g = plan_product(StridedView::of(a.dims), StridedView::of(b.dims), StridedView::of(y.dims));
  Dequantize left{
      a.dims, parameter_strides(c.in(kAZero), a.dims, true), {a.dtype, DType::float64}, c.in(kAZero).size()};
  Dequantize right{
      b.dims, parameter_strides(c.in(kBZero), b.dims, false), {b.dtype, DType::float64}, c.in(kBZero).size()};
  bool is_signed = y.dtype == DType::int8;
  Finish finish{y.dims,
                scale_strides(c.in(kAScale), y.dims, true),
                scale_strides(c.in(kBScale), y.dims, false),
                kBytes.has(y.dtype),
                is_signed ? -128.0F : 0.0F,
                is_signed ? 127.0F : 255.0F};
  Conversion narrow(DType::float64, y.dtype);
  Conversion widen_zero(y.dtype, DType::float32);
  auto doubles = [&](std::int64_t count) { return c.reserve(static_cast<std::size_t>(count) * 8); };
  std::size_t a_at = doubles(a.size());
  std::size_t b_at = doubles(b.size());
  std::size_t zero_at = doubles(std::max(left.zeros, right.zeros));
  std::size_t y_at = doubles(y.size());
  return [=](const KernelArgs& args) {
    auto at = [&](std::size_t offset) { return reinterpret_cast<double*>(args.scratch + offset); };
    left.run(args.inputs[kA], args.inputs[kAZero], at(a_at), at(zero_at));
    right.run(args.inputs[kB], args.inputs[kBZero], at(b_at), at(zero_at));
    batched_gemm<double>(g, 1.0, at(a_at), at(b_at), at(y_at));
    float zero = 0;
    widen_zero.serial(args.inputs[kYZero], &zero, 1);
    finish.run(at(y_at), args.in<float>(kAScale), args.in<float>(kBScale), *args.in<float>(kYScale), zero);
    narrow.parallel(at(y_at), args.outputs[0], y.size());
  };
}

const Register qlinear_matmul{{.name = "QLinearMatMul",
                               .since = 21,
                               .doc = "matrix product of quantized tensors (8-bit integers or float8)",
                               .inputs = {8, 8},
                               .types = kBytes | kFloat8,
                               .infer = infer_qlinear,
                               .prepare = prepare_qlinear,
                               .half_through_float = true}};

}  // namespace
}  // namespace backpass
