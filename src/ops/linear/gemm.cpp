// Gemm: Y = alpha * A' B' + beta * C, where C broadcasts to Y.
#include "kernels/gemm.hpp"

#include <algorithm>
#include <memory>
#include <tuple>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/half_gemm.hpp"
#include "ops/flops.hpp"
#include "ops/linear/product.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "A and B have different element types: got ", name_of(c.dtype(0)), " and ",
            name_of(c.dtype(1)));
  c.set_dtype(0, c.dtype(0));
  bool trans_a = c.node.attr_int("transA", 0) != 0;
  bool trans_b = c.node.attr_int("transB", 0) != 0;
  const Shape& a = c.shape(0);
  const Shape& b = c.shape(1);
  c.require(a.size() == 2 && b.size() == 2, "A and B are ", shown(a), " and ", shown(b),
            ": expected two axes each; use MatMul for more");
  c.unify(a[trans_a ? 0 : 1], b[trans_b ? 1 : 0], "inner extents of A and B");
  Shape y{a[trans_a ? 1 : 0], b[trans_b ? 0 : 1]};
  if (c.has_input(2)) {
    c.require(c.dtype(2) == c.dtype(0), "C has element type ", name_of(c.dtype(2)), ": expected ", name_of(c.dtype(0)));
    if (c.knows_shape(2)) {
      const Shape& bias = c.shape(2);
      c.require(bias.size() <= 2, "C is ", shown(bias), ": expected at most two axes");
      for (std::size_t i = 0; i < bias.size(); ++i) {
        Dim& out = y[2 - bias.size() + i];
        if (bias[i].is_known() && !bias[i].is(1)) out = c.unify(out, bias[i], "extents of C and the product");
      }
    }
  }
  c.set_shape(0, std::move(y));
}

struct Spec {
  bool trans_a, trans_b;
  std::int64_t m, n, k;
  double alpha, beta;
  bool has_c = false;
  std::int64_t row_stride = 0, col_stride = 0;  ///< of C

  std::int64_t lda() const { return std::max<std::int64_t>(1, trans_a ? m : k); }
  std::int64_t ldb() const { return std::max<std::int64_t>(1, trans_b ? k : n); }
  std::int64_t ldc() const { return std::max<std::int64_t>(1, n); }
  /// C is one row: the product can add it on the way.
  bool c_is_bias() const { return has_c && row_stride == 0 && col_stride == 1 && beta == 1; }
};

Spec spec_of(PrepareContext& c) {
  Spec s{};
  s.trans_a = c.node.attr_int("transA", 0) != 0;
  s.trans_b = c.node.attr_int("transB", 0) != 0;
  s.alpha = c.node.attr_float("alpha", 1);
  s.beta = c.node.attr_float("beta", 1);
  s.m = c.out(0).dims[0];
  s.n = c.out(0).dims[1];
  s.k = c.in(0).dims[s.trans_a ? 0 : 1];
  s.has_c = c.has_input(2) && s.beta != 0;
  if (s.has_c) {
    Dims strides = broadcast_strides(c.in(2).dims, c.out(0).dims);
    s.row_stride = strides[0];
    s.col_stride = strides[1];
  }
  return s;
}

/// Y = beta * C, so that the product only has to be added.
template <class T>
void spread(const Spec& s, const T* c, T* y) {
  auto beta = static_cast<T>(s.beta);
  parallel_for(s.m, grain_for(s.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) y[i * s.n + j] = beta * c[i * s.row_stride + j * s.col_stride];
    }
  });
}

template <class T>
Kernel real_kernel(const Spec& s, const Tensor* constant_b, DType dtype) {
  std::shared_ptr<const PackedMatrix<T>> packed;
  if (constant_b != nullptr && constant_b->dtype() == dtype) {
    packed = shared_packed<T>(*constant_b, s.trans_b, s.k, s.n);
  }
  return [s, packed](const KernelArgs& args) {
    T* y = args.out<T>(0);
    Epilogue<T> epilogue;
    T keep = 0;
    if (s.c_is_bias()) {
      epilogue.bias = args.in<T>(2);
    } else if (s.has_c) {
      spread(s, args.in<T>(2), y);
      keep = 1;
    }
    auto alpha = static_cast<T>(s.alpha);
    if (packed != nullptr) {
      packed->multiply(s.trans_a, s.m, alpha, args.in<T>(0), s.lda(), keep, y, s.ldc(), epilogue);
    } else {
      gemm<T>(s.trans_a, s.trans_b, s.m, s.n, s.k, alpha, args.in<T>(0), s.lda(), args.in<T>(1), s.ldb(), keep, y,
              s.ldc(), epilogue);
    }
  };
}

Kernel half_kernel(const Spec& s, const Tensor* constant_b, DType dtype) {
  HalfProduct half;
  half.dtype = half.result = dtype;
  half.alpha = s.alpha;
  half.batch.trans_a = s.trans_a;
  half.batch.trans_b = s.trans_b;
  std::tie(half.batch.m, half.batch.n, half.batch.k) = std::tie(s.m, s.n, s.k);
  half.batch.lda = s.lda();
  half.batch.ldb = s.ldb();
  half.batch.ldc = s.ldc();
  half.addend = {s.has_c, s.beta, s.row_stride, s.col_stride};
  const bool is_constant = constant_b != nullptr && constant_b->dtype() == dtype;
  const HalfGemm gemm = is_constant ? HalfGemm(half, constant_b->data()) : HalfGemm(half);
  return [gemm, has_c = s.has_c](const KernelArgs& args) {
    gemm.run(args.inputs[0], args.inputs[1], has_c ? args.inputs[2] : nullptr, args.outputs[0]);
  };
}

/// Integers: exact while the factors are 1, in double precision otherwise.
template <class T>
Kernel integer_kernel(const Spec& s) {
  using U = std::make_unsigned_t<T>;
  return [s](const KernelArgs& args) {
    T* y = args.out<T>(0);
    integer_gemm<U>(s.trans_a, s.trans_b, s.m, s.n, s.k, args.in<U>(0), s.lda(), args.in<U>(1), s.ldb(), args.out<U>(0),
                    s.ldc());
    const T* c = s.has_c ? args.in<T>(2) : nullptr;
    for (std::int64_t i = 0; i < s.m * s.n; ++i) {
      T addend = c != nullptr ? c[i / s.n * s.row_stride + i % s.n * s.col_stride] : T(0);
      if (s.alpha == 1 && s.beta == 1) {
        y[i] = static_cast<T>(static_cast<U>(y[i]) + static_cast<U>(addend));
      } else {
        y[i] = static_cast<T>(s.alpha * static_cast<double>(y[i]) + s.beta * static_cast<double>(addend));
      }
    }
  };
}

Kernel prepare(PrepareContext& c) {
  Spec s = spec_of(c);
  DType dtype = c.in(0).dtype;
  switch (dtype) {
    case DType::int32:
      return integer_kernel<std::int32_t>(s);
    case DType::int64:
      return integer_kernel<std::int64_t>(s);
    case DType::uint32:
      return integer_kernel<std::uint32_t>(s);
    case DType::uint64:
      return integer_kernel<std::uint64_t>(s);
    default:
      break;
  }
  if (types::halves.has(dtype)) return half_kernel(s, c.in(1).constant, dtype);
  Kernel kernel;
  visit_real(dtype, [&]<class T>() { kernel = real_kernel<T>(s, c.in(1).constant, dtype); });
  return kernel;
}

/// Each operand's gradient is a Gemm of dY and the other one, in the order that leaves the operand as it was given.
void gradient(GradientContext& g) {
  const std::int64_t trans_a = g.node.attr_int("transA", 0) != 0 ? 1 : 0;
  const std::int64_t trans_b = g.node.attr_int("transB", 0) != 0 ? 1 : 0;
  const float alpha = g.node.attr_float("alpha", 1);
  const float beta = g.node.attr_float("beta", 1);
  auto product = [&](Value* left, std::int64_t trans_left, Value* right, std::int64_t trans_right) {
    return g.op("Gemm", {left, right}, {{"alpha", alpha}, {"transA", trans_left}, {"transB", trans_right}});
  };
  Value* dy = g.dy();
  g.set(0, trans_a != 0 ? product(g.x(1), trans_b, dy, 1) : product(dy, 0, g.x(1), 1 - trans_b));
  g.set(1, trans_b != 0 ? product(dy, 1, g.x(0), trans_a) : product(g.x(0), 1 - trans_a, dy, 0));
  if (!g.wants(2)) return;
  if (beta == 0) {
    g.set_zero(2);  // C is not even read
  } else {
    Value* sum = g.reduce_like(dy, g.x(2));
    g.set(2, beta == 1 ? sum : g.mul(sum, g.number(beta)));
  }
}

const Register gemm_op{{.name = "Gemm",
                        .since = 13,
                        .doc = "alpha * A' B' + beta * C for matrices, optionally transposed",
                        .inputs = {2, 3},
                        .types = types::floats | DTypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64},
                        .infer = infer,
                        .prepare = prepare,
                        .gradient = gradient,
                        .flops = [](const Node& node) {
                          return flops::sums(
                              node, flops::shape(node.inputs.at(0)).at(node.attr_int("transA", 0) != 0 ? 0 : 1));
                        }}};

}  // namespace
}  // namespace backpass
