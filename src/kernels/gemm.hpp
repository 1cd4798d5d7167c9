// Matrix product on raw memory, row-major. The same bits for any number of threads: every element of C is summed over k
// in an order that depends on the sizes only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backpass/tensor.hpp"
#include "kernels/tile.hpp"

namespace backpass {

/// What is done to C after the product: C = f(alpha * op(A) op(B) + beta * C + bias), column by column.
template <class T>
struct Epilogue {
  const T* bias = nullptr;  ///< n elements; null: none
  bool relu = false;
  TileCall activate = {};  ///< f of finished elements, once for each
};

/// C[m, n] = alpha * op(A) op(B) + beta * C, where op(A) is [m, k] (stored [k, m] when `trans_a`) and op(B) is [k, n].
/// `lda`, `ldb`, `ldc` are distances between stored rows. With beta 0, C is not read.
template <class T>
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc,
          const Epilogue<T>& epilogue = {});

/// C[m, n] = A B + beta * C on this thread alone, where A, stored [k, m], is short, and in a near cache: it is read
/// where it lies. Some of the `rows_behind` B's rows are fetched, for the next product.
template <class T>
void gemm_near(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
               std::int64_t ldb, T beta, T* c, std::int64_t ldc, std::int64_t rows_behind);

/// gemm() for elements that wrap around: std::uint32_t, std::uint64_t (and signed numbers seen as those).
template <class T>
void integer_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                  std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc);

/// op(B) stored once, in the order the innermost loop reads it, for many products.
template <class T>
class PackedMatrix {
 public:
  PackedMatrix(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb);
  /// In memory that the caller lends: elements(k, n), at the beginning of a cache line.
  PackedMatrix(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* memory);

  static std::int64_t elements(std::int64_t k, std::int64_t n);
  std::int64_t rows() const { return k_; }
  std::int64_t cols() const { return n_; }

  /// C[m, n] = alpha * op(A) B + beta * C, then the epilogue. Some of the `rows_behind` A's rows are fetched: those of
  /// the next product, where many are made of one matrix.
  void multiply(bool trans_a, std::int64_t m, T alpha, const T* a, std::int64_t lda, T beta, T* c, std::int64_t ldc,
                const Epilogue<T>& epilogue = {}, std::int64_t rows_behind = 0) const;

 private:
  std::int64_t k_;
  std::int64_t n_;
  std::shared_ptr<T> panels_;
};

/// The packed form of a constant [k, n] matrix ([n, k] when `transposed`), shared by everyone who asks for the same one
/// while any of them is alive. The matrix begins `offset` elements into the tensor.
template <class T>
std::shared_ptr<const PackedMatrix<T>> shared_packed(const Tensor& constant, bool transposed, std::int64_t k,
                                                     std::int64_t n, std::int64_t offset = 0);

/// Many products of one size over batch axes; operands advance by their own strides (0: the same matrix again).
struct GemmBatch {
  bool trans_a = false;
  bool trans_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;
  Dims batch;  ///< extents; empty: one product
  Dims stride_a;
  Dims stride_b;
  Dims stride_c;
};

template <class T>
void batched_gemm(const GemmBatch& batch, T alpha, const T* a, const T* b, T* c, const Epilogue<T>& epilogue = {});

template <class T>
void batched_integer_gemm(const GemmBatch& batch, const T* a, const T* b, T* c);

}  // namespace backpass
