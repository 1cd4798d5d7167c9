#include <algorithm>

#include "kernels/gemm.hpp"
#include "support/parallel.hpp"

namespace backpass {

template <class T>
void integer_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                  std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  parallel_for(m, grain_for(n * k), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = c + i * ldc;
      std::fill_n(row, n, T(0));
      for (std::int64_t p = 0; p < k; ++p) {
        T factor = trans_a ? a[p * lda + i] : a[i * lda + p];
        if (trans_b) {
          for (std::int64_t j = 0; j < n; ++j) row[j] += factor * b[j * ldb + p];
        } else {
          for (std::int64_t j = 0; j < n; ++j) row[j] += factor * b[p * ldb + j];
        }
      }
    }
  });
}

namespace {

/// Calls f(offset of A, offset of B, offset of C) for product number `index` of the batch.
template <class F>
void at_batch(const GemmBatch& g, std::int64_t index, F&& f) {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t c = 0;
  for (std::size_t axis = g.batch.size(); axis-- > 0;) {
    std::int64_t at = index % g.batch[axis];
    index /= g.batch[axis];
    a += at * g.stride_a[axis];
    b += at * g.stride_b[axis];
    c += at * g.stride_c[axis];
  }
  f(a, b, c);
}

/// Few large products: threads inside each. Many small ones: one thread per product.
template <class F>
void for_each_product(const GemmBatch& g, const F& f) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 23;
  std::int64_t count = element_count(g.batch);
  if (count == 1 || (count < 16 && g.m * g.n * g.k >= kLarge)) {
    for (std::int64_t i = 0; i < count; ++i) at_batch(g, i, f);
    return;
  }
  parallel_for(count, grain_for(g.m * g.n * g.k, 1 << 18), [&](std::int64_t begin, std::int64_t end) {
    ThreadScope alone(1);
    for (std::int64_t i = begin; i < end; ++i) at_batch(g, i, f);
  });
}

}  // namespace

template <class T>
void batched_gemm(const GemmBatch& g, T alpha, const T* a, const T* b, T* c, const Epilogue<T>& epilogue) {
  for_each_product(g, [&](std::int64_t at_a, std::int64_t at_b, std::int64_t at_c) {
    gemm<T>(g.trans_a, g.trans_b, g.m, g.n, g.k, alpha, a + at_a, g.lda, b + at_b, g.ldb, T(0), c + at_c, g.ldc,
            epilogue);
  });
}

template <class T>
void batched_integer_gemm(const GemmBatch& g, const T* a, const T* b, T* c) {
  for_each_product(g, [&](std::int64_t at_a, std::int64_t at_b, std::int64_t at_c) {
    integer_gemm<T>(g.trans_a, g.trans_b, g.m, g.n, g.k, a + at_a, g.lda, b + at_b, g.ldb, c + at_c, g.ldc);
  });
}

template void batched_gemm<float>(const GemmBatch&, float, const float*, const float*, float*, const Epilogue<float>&);
template void batched_gemm<double>(const GemmBatch&, double, const double*, const double*, double*,
                                   const Epilogue<double>&);
#define BACKPASS_INSTANTIATE(T)                                                                               \
  template void integer_gemm<T>(bool, bool, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, \
                                const T*, std::int64_t, T*, std::int64_t);                                    \
  template void batched_integer_gemm<T>(const GemmBatch&, const T*, const T*, T*);
BACKPASS_INSTANTIATE(std::uint32_t)
BACKPASS_INSTANTIATE(std::uint64_t)
#undef BACKPASS_INSTANTIATE

}  // namespace backpass
