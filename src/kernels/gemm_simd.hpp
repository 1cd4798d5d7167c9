// The innermost loops of matrix product, one copy per instruction set. Used through kernels/gemm.hpp.
#pragma once

#include <cstdint>

namespace backpass {

/// Rows that are read from memory after a product, fetched into a near cache meanwhile. None: no rows.
template <class T>
struct ReadNext {
  const T* data = nullptr;
  std::int64_t rows = 0, cols = 0, ld = 0;
};

/// What happens to a block of C once its sums over the present stretch of k are in registers, and after it.
template <class T>
struct BlockEnd {
  T alpha = 1;
  T beta = 0;               ///< factor of what C holds already; 0: C is not read
  const T* bias = nullptr;  ///< one per column of the block, added after alpha; null: none
  bool relu = false;
  ReadNext<T> next = {};
};

/// How A is stored: row after row, column after column, or in bundles of rows that are computed together.
enum class LeftLayout { rows, columns, bundles };

/// Loops over one stretch of k, chosen once for the processor. B is stored in panels of `panel` columns: panel after
/// panel, each k x panel elements, the last one filled up with zeros.
template <class T>
struct GemmKernels {
  std::int64_t panel;    ///< columns per panel of B
  std::int64_t vectors;  ///< vectors per row of a panel
  std::int64_t rows;     ///< rows of C that are computed together

  /// C[m, n] = alpha * A B + beta * C (+ bias, relu). A is row-major; `b` is the first of its panels, `b_stride`
  /// elements lie between the beginnings of neighbouring panels.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                   std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end);

  /// The same for A stored as [k, m], `lda` elements from row to row. Worth while where copying it the other way round
  /// is not: for few columns.
  void (*multiply_transposed)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                              std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end);

  /// The same for A in bundles.
  void (*multiply_bundles)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b,
                           std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end);

  /// The same for B where it lies, [k, n], or [n, k] when `transposed`, n a multiple of `panel`. A panel is packed in
  /// `room`, k x panel elements, by the first tile to use it or, transposed, before; the last tiles fetch the next
  /// panel, whose place no processor guesses.
  void (*multiply_unpacked)(LeftLayout layout, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                            const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* room, T* c, std::int64_t ldc,
                            const BlockEnd<T>& end);

  /// Stores A, given as [k, m], in bundles: rows that are computed together, as [k, rows], bundle after bundle. Nothing
  /// changes places within a row of what is given, so that this is faster than storing A row by row.
  void (*bundle)(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, T* out);

  /// Stores k rows and n columns of B as panels; B is row-major [k, n], or [n, k] when `transposed`.
  void (*pack)(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* out,
               std::int64_t out_stride);
};

template <class T>
const GemmKernels<T>& gemm_kernels();

}  // namespace backpass
