#include "kernels/gemm.hpp"

#include <dnnl.h>

#include <algorithm>

#include "kernels/gemm_blocks.hpp"
#include "kernels/gemm_few_rows.hpp"
#include "kernels/pack_cache.hpp"
#include "kernels/transpose_tile.hpp"
#include "support/float_mode.hpp"

namespace backpass {
namespace {

// Elements of B packed at a time when it is not constant. No plan counts this memory: more would not be faster.
constexpr std::int64_t kPackedElements = std::int64_t{1} << 19;

/// Where the panels of B for a stretch of k begin.
template <class T>
struct Panels {
  const T* data;
  std::int64_t k, padded_n, stretch;

  const T* at(std::int64_t p, std::int64_t j, std::int64_t depth) const { return data + p * padded_n + j * depth; }
};

/// Some rows of A over one stretch of k, as they lie in memory.
template <class T>
ReadNext<T> rows_of(const Operand<T>& a, std::int64_t i0, std::int64_t rows, std::int64_t p, std::int64_t depth) {
  if (a.transposed) return {a.data + p * a.ld + i0, depth, rows, a.ld};
  return {a.data + i0 * a.ld + p, rows, depth, a.ld};
}

/// One piece of C over all of k. The next piece reads `next_rows` rows of A, from `next_row` on.
template <class T>
void multiply_piece(const Operand<T>& a, const Panels<T>& b, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                    std::int64_t cols, T alpha, T beta, T* c, std::int64_t ldc, const Epilogue<T>& epilogue,
                    std::int64_t next_row, std::int64_t next_rows) {
  T* to = c + i0 * ldc + j0;
  std::int64_t p = 0;
  do {
    const std::int64_t depth = std::min(b.stretch, b.k - p);
    BlockEnd<T> end = block_end(p, depth, b.k, j0, alpha, beta, epilogue);
    const std::int64_t q = p + depth;
    end.next = q < b.k ? rows_of(a, i0, rows, q, std::min(b.stretch, b.k - q))
                       : rows_of(a, next_row, next_rows, 0, std::min(b.stretch, b.k));
    multiply_stretch(left_block(a, i0, rows, p, depth, cols), rows, depth, b.at(p, j0, depth), cols, to, ldc, end);
    p += depth;
  } while (p < b.k);
  activate(epilogue, to, ldc, rows, cols);
}

template <class T>
void multiply_packed(const Operand<T>& a, const Panels<T>& b, std::int64_t m, std::int64_t n, T alpha, T beta, T* c,
                     std::int64_t ldc, const Epilogue<T>& epilogue, std::int64_t rows_behind = 0) {
  if (m == 0 || n == 0) return;
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const Pieces pieces = pieces_of(m, n, b.k, kernels.rows, kernels.panel);
  parallel_for(pieces.row_count * pieces.col_count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t i0 = pieces.first_row(piece / pieces.col_count);
      const std::int64_t i1 = std::min(pieces.first_row(piece / pieces.col_count + 1), m);
      const std::int64_t j0 = pieces.first_column(piece % pieces.col_count);
      const std::int64_t cols = std::min(pieces.first_column(piece % pieces.col_count + 1), n) - j0;
      const bool is_last = (piece + 1) % pieces.col_count == 0;
      const std::int64_t next_row = is_last ? i1 : i0;
      const std::int64_t next_rows = is_last || b.k > b.stretch ? std::min(i1 - i0, m + rows_behind - next_row) : 0;
      multiply_piece(a, b, i0, i1 - i0, j0, cols, alpha, beta, c, ldc, epilogue, next_row, next_rows);
    }
  });
}

/// Stores op(B) as panels: for each stretch of k, all its panels one after the other.
template <class T>
void pack_all(bool transposed, std::int64_t k, std::int64_t n, std::int64_t stretch, const T* b, std::int64_t ldb,
              T* out) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  std::int64_t panels = (n + kernels.panel - 1) / kernels.panel;
  std::int64_t padded_n = panels * kernels.panel;
  // Some panels at a time: what they read of a row is then more than one cache line.
  constexpr std::int64_t kPanelsAtOnce = 8;
  const std::int64_t grain = std::max(std::min(kPanelsAtOnce, panels / 8), grain_for(k * kernels.panel));
  parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t j0 = begin * kernels.panel;
    std::int64_t cols = std::min(n, end * kernels.panel) - j0;
    for (std::int64_t p = 0; p < k; p += stretch) {
      std::int64_t depth = std::min(stretch, k - p);
      const T* from = transposed ? b + j0 * ldb + p : b + p * ldb + j0;
      kernels.pack(transposed, depth, cols, from, ldb, out + p * padded_n + j0 * depth, depth * kernels.panel);
    }
  });
}

template <class T>
std::int64_t padded_columns(std::int64_t n) {
  return round_up(n, gemm_kernels<T>().panel);
}

/// How much of B is packed at a time. Of a long k not all at once, or there would be columns for a few panels only, and
/// A would be read for each few.
struct PackedParts {
  std::int64_t cols, depth, stretch;
};

template <class T>
PackedParts packed_parts(std::int64_t n, std::int64_t k) {
  const std::int64_t panel = gemm_kernels<T>().panel;
  const std::int64_t stretch = stretch_of(k);
  const std::int64_t most = std::max(panel, kPackedElements / stretch / panel * panel);
  const std::int64_t parts = (n + most - 1) / most;
  const std::int64_t cols = round_up((n + parts - 1) / parts, panel);
  return {cols, std::max<std::int64_t>(1, kPackedElements / (cols * stretch)) * stretch, stretch};
}

/// Whether C is computed the other way round, C' = op(B)' op(A)'. Of a transposed A that needs no copy, and few columns
/// of C, which would leave most of a vector empty, are a full tile as rows.
bool turning_pays(bool trans_a, std::int64_t m, std::int64_t n) { return trans_a && n <= 16 && m >= 8 * n && m >= 64; }

template <class T>
void multiply_turned(bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                     std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc,
                     const Epilogue<T>& epilogue) {
  T* turned = thread_buffer<T, kTurnedC>(m * n);
  multiply_few_rows<T>({b, ldb, !trans_b}, {a, lda, false}, n, m, k, alpha, T(0), turned, m, {});
  if (beta == T(0) && epilogue.bias == nullptr && !epilogue.relu) {
    kernels::transpose(turned, m, c, ldc, m, n);
  } else {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        T value = turned[j * m + i];
        if (beta != T(0)) value += beta * c[i * ldc + j];
        if (epilogue.bias != nullptr) value += epilogue.bias[j];
        c[i * ldc + j] = epilogue.relu && value < T(0) ? T(0) : value;  // NaN stays
      }
    }
  }
  activate(epilogue, c, ldc, m, n);
}

/// Packing B pays only when enough rows use it; oneDNN reads B where it lies.
bool packing_pays(std::int64_t m) { return m >= 16; }

void multiply_in_place(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                       const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                       std::int64_t ldc, const Epilogue<float>& epilogue) {
  constexpr std::int64_t kColumns = 512;
  parallel_for((n + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    ThreadScope alone(1);  // the library must not cut k into one part per thread
    const TinyAsZero tiny;
    for (std::int64_t j0 = begin * kColumns; j0 < std::min(n, end * kColumns); j0 += kColumns) {
      std::int64_t cols = std::min(kColumns, n - j0);
      dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, cols, k, alpha, a, lda,
                                        trans_b ? b + j0 * ldb : b + j0, ldb, beta, c + j0, ldc);
      ensure(status == dnnl_success, "dnnl_sgemm failed with status ", static_cast<int>(status));
      for (std::int64_t i = 0; i < m; ++i) {
        float* row = c + i * ldc + j0;
        if (epilogue.bias != nullptr) {
          for (std::int64_t j = 0; j < cols; ++j) row[j] += epilogue.bias[j0 + j];
        }
        if (epilogue.relu) {
          for (std::int64_t j = 0; j < cols; ++j) row[j] = std::max(row[j], 0.0F);
        }
        if (epilogue.activate) epilogue.activate(row, cols);
      }
    }
  });
}

}  // namespace

template <class T>
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc, const Epilogue<T>& epilogue) {
  if (m == 0 || n == 0) return;
  if (turning_pays(trans_a, m, n)) {
    multiply_turned<T>(trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, epilogue);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (!packing_pays(m) && k > 0 && alpha != 0) {  // with SSE4 oneDNN leaves C as it was where alpha is 0
      multiply_in_place(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, epilogue);
      return;
    }
  }
  if (few_rows<T>({a, lda, trans_a}, m, n, k)) {
    multiply_few_rows<T>({a, lda, trans_a}, {b, ldb, trans_b}, m, n, k, alpha, beta, c, ldc, epilogue);
    return;
  }
  const PackedParts parts = packed_parts<T>(n, k);
  for (std::int64_t j0 = 0; j0 < n; j0 += parts.cols) {
    const std::int64_t cols = std::min(parts.cols, n - j0);
    const std::int64_t padded = padded_columns<T>(cols);
    std::int64_t p0 = 0;
    do {
      const std::int64_t depth = std::min(parts.depth, k - p0);
      T* packed = thread_buffer<T, kPackedB>(padded * depth);
      pack_all(trans_b, depth, cols, parts.stretch, trans_b ? b + j0 * ldb + p0 : b + p0 * ldb + j0, ldb, packed);
      Epilogue<T> part = p0 + depth == k ? epilogue : Epilogue<T>{};
      if (part.bias != nullptr) part.bias += j0;
      multiply_packed<T>({trans_a ? a + p0 * lda : a + p0, lda, trans_a}, {packed, depth, padded, parts.stretch}, m,
                         cols, alpha, p0 == 0 ? beta : T(1), c + j0, ldc, part);
      p0 += depth;
    } while (p0 < k);
  }
}

template <class T>
PackedMatrix<T>::PackedMatrix(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb)
    : k_(k), n_(n) {
  Tensor memory(sizeof(T) == 4 ? DType::float32 : DType::float64, {k * padded_columns<T>(n)});
  auto keep = std::make_shared<Tensor>(memory);
  panels_ = std::shared_ptr<T>(keep, keep->template as<T>());
  pack_all(transposed, k, n, stretch_of(k), b, ldb, panels_.get());
}

template <class T>
PackedMatrix<T>::PackedMatrix(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* memory)
    : k_(k), n_(n), panels_(std::shared_ptr<void>(), memory) {
  pack_all(transposed, k, n, stretch_of(k), b, ldb, memory);
}

template <class T>
std::int64_t PackedMatrix<T>::elements(std::int64_t k, std::int64_t n) {
  return k * padded_columns<T>(n);
}

template <class T>
void PackedMatrix<T>::multiply(bool trans_a, std::int64_t m, T alpha, const T* a, std::int64_t lda, T beta, T* c,
                               std::int64_t ldc, const Epilogue<T>& epilogue, std::int64_t rows_behind) const {
  multiply_packed<T>({a, lda, trans_a}, {panels_.get(), k_, padded_columns<T>(n_), stretch_of(k_)}, m, n_, alpha, beta,
                     c, ldc, epilogue, rows_behind);
}

template <class T>
std::shared_ptr<const PackedMatrix<T>> shared_packed(const Tensor& constant, bool transposed, std::int64_t k,
                                                     std::int64_t n, std::int64_t offset) {
  static PackCache<PackedMatrix<T>, bool, std::int64_t, std::int64_t> cache;
  const T* b = constant.as<T>() + offset;
  return cache.get(constant, b, transposed, k, n, [&] {
    PackedMatrix<T> packed(transposed, k, n, b, transposed ? k : n);
    release_mapped_pages(b, static_cast<std::size_t>(k * n) * sizeof(T));
    return packed;
  });
}

#define BACKPASS_INSTANTIATE(T)                                                                                     \
  template void gemm<T>(bool, bool, std::int64_t, std::int64_t, std::int64_t, T, const T*, std::int64_t, const T*,  \
                        std::int64_t, T, T*, std::int64_t, const Epilogue<T>&);                                     \
  template class PackedMatrix<T>;                                                                                   \
  template std::shared_ptr<const PackedMatrix<T>> shared_packed<T>(const Tensor&, bool, std::int64_t, std::int64_t, \
                                                                   std::int64_t);
BACKPASS_INSTANTIATE(float)
BACKPASS_INSTANTIATE(double)
#undef BACKPASS_INSTANTIATE

}  // namespace backpass
