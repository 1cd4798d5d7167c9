#include "ops/linear/product.hpp"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "kernels/half_gemm.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {

Shape matmul_shape(InferContext& c, Shape a, Shape b) {
  c.require(!a.empty() && !b.empty(), "shapes of the operands: got ", shown(a), " and ", shown(b),
            ", expected at least one axis each");
  bool row = a.size() == 1;
  bool column = b.size() == 1;
  if (row) a.insert(a.begin(), Dim(1));
  if (column) b.push_back(Dim(1));
  c.unify(a.back(), b[b.size() - 2], "inner extents of the product");
  Shape y = rules::broadcast(c, Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!row) y.push_back(a[a.size() - 2]);
  if (!column) y.push_back(b.back());
  return y;
}

Shape permuted(const Shape& shape, const std::vector<std::int64_t>& perm) {
  if (perm.empty()) return shape;
  Shape result;
  for (std::int64_t axis : perm) result.push_back(shape[static_cast<std::size_t>(axis)]);
  return result;
}

StridedView StridedView::of(const Dims& dims) { return {dims, strides_of(dims)}; }

StridedView StridedView::permuted(const std::vector<std::int64_t>& perm) const {
  if (perm.empty()) return *this;
  StridedView result;
  for (std::int64_t axis : perm) {
    result.dims.push_back(dims[static_cast<std::size_t>(axis)]);
    result.strides.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  return result;
}

namespace {

bool is_unit(const StridedView& v, std::size_t axis) { return v.strides[axis] == 1 || v.dims[axis] == 1; }

struct MatrixAccess {
  bool transposed;
  std::int64_t ld;
};

/// How gemm reads the last two axes.
MatrixAccess access_of(const StridedView& v) {
  std::size_t rows = v.dims.size() - 2;
  std::size_t cols = rows + 1;
  bool transposed = !is_unit(v, cols);
  std::size_t outer = transposed ? cols : rows;
  std::size_t inner = transposed ? rows : cols;
  ensure(is_unit(v, inner), "product of a matrix without a contiguous axis");
  std::int64_t least = std::max<std::int64_t>(1, v.dims[inner]);
  return {transposed, v.dims[outer] <= 1 ? least : std::max(least, v.strides[outer])};
}

Dims batch_strides(const StridedView& v, const Dims& batch) {
  Dims result(batch.size(), 0);
  std::size_t own = v.dims.size() - 2;
  for (std::size_t i = 0; i < own; ++i) {
    if (v.dims[i] != 1) result[batch.size() - own + i] = v.strides[i];
  }
  return result;
}

void widen(StridedView& v, bool in_front) {
  v.dims.insert(in_front ? v.dims.begin() : v.dims.end(), 1);
  v.strides.insert(in_front ? v.strides.begin() : v.strides.end(), 1);
}

/// Removes axes of extent 1, and makes batch axes rows of A while the right operand stays the same matrix.
void fold_batch(GemmBatch& g) {
  auto drop = [&](std::size_t axis) {
    auto at = static_cast<std::ptrdiff_t>(axis);
    g.batch.erase(g.batch.begin() + at);
    g.stride_a.erase(g.stride_a.begin() + at);
    g.stride_b.erase(g.stride_b.begin() + at);
    g.stride_c.erase(g.stride_c.begin() + at);
  };
  for (std::size_t axis = g.batch.size(); axis-- > 0;) {
    if (g.batch[axis] == 1) drop(axis);
  }
  while (!g.batch.empty() && !g.trans_a) {
    std::size_t last = g.batch.size() - 1;
    bool one_row = g.m == 1;
    std::int64_t next_a = g.stride_a[last];
    std::int64_t next_c = g.stride_c[last];
    bool continues = one_row ? next_a >= g.k && next_c >= g.n : next_a == g.m * g.lda && next_c == g.m * g.ldc;
    if (g.stride_b[last] != 0 || !continues) break;
    if (one_row) {
      g.lda = std::max<std::int64_t>(1, next_a);
      g.ldc = std::max<std::int64_t>(1, next_c);
    }
    g.m *= g.batch[last];
    drop(last);
  }
}

}  // namespace

bool is_matrix_readable(const StridedView& v) {
  return v.dims.size() < 2 || is_unit(v, v.dims.size() - 1) || is_unit(v, v.dims.size() - 2);
}

GemmBatch plan_product(StridedView a, StridedView b, StridedView y) {
  if (a.dims.size() == 1) {
    widen(a, true);
    y.dims.insert(y.dims.end() - (b.dims.size() == 1 ? 0 : 1), 1);
    y.strides.insert(y.strides.end() - (b.dims.size() == 1 ? 0 : 1), std::max<std::int64_t>(1, b.dims.back()));
  }
  if (b.dims.size() == 1) {
    widen(b, false);
    widen(y, false);
  }
  GemmBatch g;
  std::size_t rank = y.dims.size();
  g.m = y.dims[rank - 2];
  g.n = y.dims[rank - 1];
  g.k = a.dims.back();
  MatrixAccess at_a = access_of(a);
  MatrixAccess at_b = access_of(b);
  MatrixAccess at_y = access_of(y);
  ensure(!at_y.transposed, "product written to a transposed matrix");
  std::tie(g.trans_a, g.lda) = std::pair(at_a.transposed, at_a.ld);
  std::tie(g.trans_b, g.ldb) = std::pair(at_b.transposed, at_b.ld);
  g.ldc = at_y.ld;
  g.batch.assign(y.dims.begin(), y.dims.end() - 2);
  g.stride_a = batch_strides(a, g.batch);
  g.stride_b = batch_strides(b, g.batch);
  g.stride_c = batch_strides(y, g.batch);
  fold_batch(g);
  return g;
}

namespace {

/// The right operand is one constant matrix, as it is stored.
bool is_whole_matrix(const Product& p, DType dtype) {
  return p.constant_b != nullptr && p.constant_b->dtype() == dtype && p.batch.batch.empty() &&
         p.constant_b->size() == p.batch.k * p.batch.n &&
         p.batch.ldb == std::max<std::int64_t>(1, p.batch.trans_b ? p.batch.k : p.batch.n);
}

template <class T>
Kernel typed_kernel(DType dtype, Product p) {
  Epilogue<T> epilogue;
  epilogue.relu = p.activation && p.activation.function->name == "Relu";  // done in registers
  if (!epilogue.relu) epilogue.activate = p.activation.bind(dtype);
  auto alpha = static_cast<T>(p.alpha);
  std::shared_ptr<const PackedMatrix<T>> packed;
  if (is_whole_matrix(p, dtype)) packed = shared_packed<T>(*p.constant_b, p.batch.trans_b, p.batch.k, p.batch.n);
  p.constant_b = nullptr;
  return [=, p = std::move(p)](const KernelArgs& args) {
    const GemmBatch& g = p.batch;
    Epilogue<T> end = epilogue;
    if (p.has_bias) end.bias = args.in<T>(p.bias_input);
    if (packed != nullptr) {
      packed->multiply(g.trans_a, g.m, alpha, args.in<T>(0), g.lda, T(0), args.out<T>(0), g.ldc, end);
    } else {
      batched_gemm<T>(g, alpha, args.in<T>(0), args.in<T>(1), args.out<T>(0), end);
    }
  };
}

Kernel half_kernel(DType dtype, const Product& p) {
  HalfProduct half;
  half.batch = p.batch;
  half.dtype = dtype;
  half.result = p.result != DType::undefined ? p.result : dtype;
  half.alpha = p.alpha;
  half.activation = p.activation;
  half.addend.is_present = p.has_bias;
  const bool is_whole = is_whole_matrix(p, dtype);
  const HalfGemm gemm = is_whole ? HalfGemm(half, p.constant_b->data()) : HalfGemm(half);
  return [gemm, has_bias = p.has_bias, bias = p.bias_input](const KernelArgs& args) {
    gemm.run(args.inputs[0], args.inputs[1], has_bias ? args.inputs[bias] : nullptr, args.outputs[0]);
  };
}

}  // namespace

Kernel product_kernel(DType dtype, Product product) {
  if (types::halves.has(dtype)) return half_kernel(dtype, product);
  Kernel kernel;
  visit_real(dtype, [&]<class T>() { kernel = typed_kernel<T>(dtype, std::move(product)); });
  return kernel;
}

}  // namespace backpass
