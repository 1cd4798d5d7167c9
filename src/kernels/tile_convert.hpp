// Loops that change the element type of a tile.
#pragma once

#include "kernels/tile.hpp"

namespace backpass {

/// What programs call these.
inline constexpr std::string_view kTileCast = "Cast";
inline constexpr std::string_view kTileCopy = "Copy";

/// Null when there is none. Exist: 16-bit floats <-> float32, any number or bool -> float32, float64 and bool, integers
/// and bool -> int64. Floats never become integers here: what is out of range is the Cast operator's business.
TileLoop tile_convert_loop(DType from, DType to);

/// Copies elements as they are.
TileLoop tile_copy_loop(DType type);

}  // namespace backpass
