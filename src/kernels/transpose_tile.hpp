// Transposed copy of a rectangle of elements.
#pragma once

#include <cstdint>

namespace backpass::kernels {

/// to[i * to_step + j] = from[i + j * from_step] for i < height, j < width.
void transpose_tile(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width);
void transpose_tile(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width);
void transpose_tile(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width);
void transpose_tile(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width);

/// The same for numbers.
inline void transpose(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t height,
                      std::int64_t width) {
  transpose_tile(reinterpret_cast<const std::uint32_t*>(from), from_step, reinterpret_cast<std::uint32_t*>(to), to_step,
                 height, width);
}
inline void transpose(const double* from, std::int64_t from_step, double* to, std::int64_t to_step, std::int64_t height,
                      std::int64_t width) {
  transpose_tile(reinterpret_cast<const std::uint64_t*>(from), from_step, reinterpret_cast<std::uint64_t*>(to), to_step,
                 height, width);
}

}  // namespace backpass::kernels
