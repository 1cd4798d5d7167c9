// Packed 2-, 4- and 6-bit elements <-> one byte each. Elements fill a byte from its low bits up, without gaps.
#pragma once

#include <cstdint>

#include "backpass/dtype.hpp"

namespace backpass::kernels {

/// One byte per element, its value in the low bits (not sign-extended).
void unpack_elements(DType dtype, const void* packed, std::uint8_t* bytes, std::int64_t count);

/// The inverse; bits beyond the element's width are ignored.
void pack_elements(DType dtype, const std::uint8_t* bytes, void* packed, std::int64_t count);

}  // namespace backpass::kernels
