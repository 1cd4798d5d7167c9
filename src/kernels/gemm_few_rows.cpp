// One panel of B after the other: packed, multiplied with all rows of A, which lie in the second-level cache, and
// forgotten. Nothing but a panel is ever stored, so that it is in a near cache, too; other products pack many panels
// before they use the first one. Where B is not transposed, the first tile packs as it multiplies.
#include "kernels/gemm_few_rows.hpp"

namespace backpass {
namespace {

// Elements of A that stay in the second-level cache for a stretch of k.
constexpr std::int64_t kNearElements = 512 * kDepth;
// Packing B ahead was measured to be quicker on one thread where panels are narrow and k is this long; on several it
// was slower.
constexpr std::int64_t kNearElementsOfLongRows = 256 * kDepth;
constexpr std::int64_t kLongRow = 16 * kDepth;

// Columns of a piece, where there are enough of them: a piece finds its first panel far away, and reads A again, which
// counts where A is copied for it or is not in a near cache any more.
constexpr std::int64_t kWorthStarting = 384;
constexpr std::int64_t kWorthReadingAgain = 1152;

/// How columns are cut into pieces that are computed independently.
struct ColumnPieces {
  std::int64_t units, unit;  ///< of all columns; columns of one
  std::int64_t count;        ///< pieces

  std::int64_t first_column(std::int64_t piece) const { return piece * units / count * unit; }
};

// How many pieces there are may depend on the threads at hand: no element's sum does. Threads have as many of them, and
// nearly as many columns: where a panel has more than two vectors they are dealt out by the vector.
template <class T>
ColumnPieces columns_of(std::int64_t m, std::int64_t n, std::int64_t k, bool copies_a) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const std::int64_t lanes = kernels.panel / kernels.vectors;
  const std::int64_t unit = kernels.vectors > 2 ? lanes : kernels.panel;
  const std::int64_t threads = threads_here();
  constexpr std::int64_t kLeastWork = std::int64_t{1} << 18;
  const std::int64_t most = std::max<std::int64_t>(1, std::min(n / (2 * lanes), m * n * k / kLeastWork));
  const std::int64_t worth = copies_a || k > kDepth ? kWorthReadingAgain : kWorthStarting;
  const std::int64_t enough = threads == 1 ? 1 : std::clamp(n / worth, threads, 4 * threads);
  const std::int64_t near = k > kDepth ? (n + kNearColumns - 1) / kNearColumns : 1;
  return {(n + unit - 1) / unit, unit, std::min(most, round_up(std::max(enough, near), threads))};
}

template <class T>
bool copies(const Operand<T>& a) {
  return a.transposed || rows_collide<T>(a.ld);
}

/// Columns of the next panel, of `rest`. A panel and a vector at the end are dealt out as two halves: a tile of one
/// vector waits for loads. Half a vector does not.
template <class T>
std::int64_t panel_width(std::int64_t rest) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const std::int64_t lanes = kernels.panel / kernels.vectors;
  if (kernels.vectors > 2 && rest > kernels.panel + lanes / 2 && rest <= kernels.panel + lanes)
    return kernels.panel - lanes;
  return std::min(kernels.panel, rest);
}

/// Columns at the beginning that are whole panels.
template <class T>
std::int64_t whole_panels(std::int64_t cols) {
  const std::int64_t panel = gemm_kernels<T>().panel;
  std::int64_t whole = 0;
  while (whole + panel <= cols && panel_width<T>(cols - whole) == panel) whole += panel;
  return whole;
}

/// Some columns over one stretch of k.
template <class T>
void multiply_panels(const LeftBlock<T>& a, std::int64_t rows, std::int64_t depth, const Operand<T>& b,
                     std::int64_t cols, T* c, std::int64_t ldc, BlockEnd<T> end) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const T* bias = end.bias;
  T* room = thread_buffer<T, kPackedB>(depth * kernels.panel);
  std::int64_t j = whole_panels<T>(cols);
  kernels.multiply_unpacked(a.layout, b.transposed, rows, j, depth, a.data, a.ld, b.data, b.ld, room, c, ldc, end);
  if (j > 0) end.next = {};
  while (j < cols) {
    const std::int64_t width = panel_width<T>(cols - j);
    const T* from = b.transposed ? b.data + j * b.ld : b.data + j;
    kernels.pack(b.transposed, depth, width, from, b.ld, room, depth * kernels.panel);
    end.bias = bias != nullptr ? bias + j : nullptr;
    multiply_stretch(a, rows, depth, room, width, c + j, ldc, end);
    j += width;
  }
}

}  // namespace

template <class T>
bool few_rows(const Operand<T>& a, std::int64_t m, std::int64_t n, std::int64_t k) {
  const bool comes_from_memory = gemm_kernels<T>().vectors <= 2 && k >= kLongRow && threads_here() == 1;
  if (m * stretch_of(k) > (comes_from_memory ? kNearElementsOfLongRows : kNearElements)) return false;
  return columns_of<T>(m, n, k, copies(a)).count >= threads_here();
}

template <class T>
void multiply_few_rows(const Operand<T>& a, const Operand<T>& b, std::int64_t m, std::int64_t n, std::int64_t k,
                       T alpha, T beta, T* c, std::int64_t ldc, const Epilogue<T>& epilogue) {
  const std::int64_t stretch = stretch_of(k);
  const ColumnPieces pieces = columns_of<T>(m, n, k, copies(a));
  parallel_for(pieces.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t j0 = pieces.first_column(piece);
      const std::int64_t cols = std::min(pieces.first_column(piece + 1), n) - j0;
      std::int64_t p = 0;
      do {
        const std::int64_t depth = std::min(stretch, k - p);
        const T* from = b.transposed ? b.data + j0 * b.ld + p : b.data + p * b.ld + j0;
        multiply_panels(left_block(a, std::int64_t{0}, m, p, depth, cols), m, depth, {from, b.ld, b.transposed}, cols,
                        c + j0, ldc, block_end(p, depth, k, j0, alpha, beta, epilogue));
        p += depth;
      } while (p < k);
      activate(epilogue, c + j0, ldc, m, cols);
    }
  });
}

template <class T>
void gemm_near(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
               std::int64_t ldb, T beta, T* c, std::int64_t ldc, std::int64_t rows_behind) {
  BlockEnd<T> end = block_end<T>(0, k, k, 0, T(1), beta, {});
  end.next = {b + k * ldb, std::min(k, rows_behind), n, ldb};
  multiply_panels<T>({a, lda, LeftLayout::columns}, m, k, {b, ldb, false}, n, c, ldc, end);
}

#define BACKPASS_INSTANTIATE(T)                                                                                        \
  template bool few_rows<T>(const Operand<T>&, std::int64_t, std::int64_t, std::int64_t);                              \
  template void multiply_few_rows<T>(const Operand<T>&, const Operand<T>&, std::int64_t, std::int64_t, std::int64_t,   \
                                     T, T, T*, std::int64_t, const Epilogue<T>&);                                      \
  template void gemm_near<T>(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, \
                             T, T*, std::int64_t, std::int64_t);
BACKPASS_INSTANTIATE(float)
BACKPASS_INSTANTIATE(double)
#undef BACKPASS_INSTANTIATE

}  // namespace backpass
