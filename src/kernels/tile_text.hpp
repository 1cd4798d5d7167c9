// A TileProgram as text and tensors: what a graph can hold, print and copy. Loops are found again by name.
//
//   in float32; in float32 row; Spread 1 float32; Sub 0 3 float32; Mul 4 2 float32; LeakyRelu 5 float32 0.1; out 6
//   float32
//
// Registers are numbered as they come: inputs, constants, one per instruction. An instruction says which function, of
// which registers, and what it gives: the element type, `row` or `any` where it is not one element for each of the
// output's (TileShape), and parameters.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tile.hpp"

namespace backpass {

struct TileText {
  std::string code;
  std::vector<Tensor> constants;  ///< one element each
};

TileText write_tile_program(const TileProgram& program);

/// What a register holds.
struct TileKind {
  DType type;
  TileShape shape;
};

/// Of the outputs, without reading the rest.
std::vector<TileKind> tile_output_kinds(std::string_view code);

/// Of what write_tile_program gave.
TileProgram read_tile_program(std::string_view code, std::span<const Tensor> constants);

}  // namespace backpass
