// backpass.Tile: several pointwise and row-reducing operators as one program. Made by plan/fuse_tiles.cpp only.
#pragma once

#include "graph/graph.hpp"
#include "kernels/tile.hpp"

namespace backpass {

/// What the Tile node computes: the program as text (kernels/tile_text.hpp), compiled when a kernel is prepared. `rank`
/// is that of the elements it works on: constants may have had more axes than any operand that is left.
void set_tile_program(Node& node, const TileProgram& program, std::size_t rank);

}  // namespace backpass
