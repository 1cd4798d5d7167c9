// Matrix products with so few rows that no panel of B is needed twice.
#pragma once

#include <cstdint>

#include "kernels/gemm_blocks.hpp"

namespace backpass {

/// Whether a product of this size is computed faster by multiply_few_rows, which gives the same bits as any other way.
template <class T>
bool few_rows(const Operand<T>& a, std::int64_t m, std::int64_t n, std::int64_t k);

/// C[m, n] = alpha * op(A) op(B) + beta * C, then the epilogue.
template <class T>
void multiply_few_rows(const Operand<T>& a, const Operand<T>& b, std::int64_t m, std::int64_t n, std::int64_t k,
                       T alpha, T beta, T* c, std::int64_t ldc, const Epilogue<T>& epilogue);

}  // namespace backpass
