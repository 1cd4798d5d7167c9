// A TileProgram with numbers: how the output is cut into tiles and where each register's tile lies.
//
// A tile is a run of consecutive output elements: `span` indices of one axis (the split axis) times everything inside
// of it. An operand laid out like that is read where it is; one that broadcasts inside the tile is expanded into a
// buffer, and stays there for as long as following tiles need the same elements (scalars, biases: the whole chunk).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backpass/tensor.hpp"
#include "kernels/tile.hpp"

namespace backpass {

struct TilePlan {
  struct FlatOperand {  // laid out like the output
    TileRegister reg;
    int tensor;
    bool is_output;
    bool is_row;  // laid out like the output's rows
    std::int64_t element_size;
  };
  struct BroadcastOperand {
    TileRegister reg;
    int tensor;
    std::int64_t element_size;
    Dims strides;   // along every axis of `dims`, in elements
    bool is_row;    // takes no part in the last axis
    bool expanded;  // into a buffer; otherwise its elements for one tile lie in one piece
  };
  struct Buffer {
    TileRegister reg;
    std::size_t offset;  // in the workspace
  };

  std::shared_ptr<const TileProgram> program;
  Dims dims;                    ///< output extents, neighbouring axes joined where every operand allows; at least one
  std::size_t split = 0;        ///< axis that tiles cut
  std::int64_t span = 1;        ///< its indices per tile
  std::int64_t block = 1;       ///< elements inside one index
  std::int64_t row_length = 0;  ///< last extent, where it matters: programs with rows
  std::int64_t row_block = 0;   ///< rows inside one index
  std::int64_t tiles_per_line = 1;  ///< along the split axis
  std::int64_t tiles = 0;
  std::int64_t tiles_per_chunk = 1;

  std::vector<FlatOperand> flat;
  std::vector<BroadcastOperand> broadcast;
  std::vector<Buffer> buffers;
  std::vector<std::pair<TileRegister, int>> late_outputs;  ///< computed in a buffer, copied when the tile is done
  std::size_t workspace = 0;  ///< bytes per thread: pointers, what broadcast buffers hold, buffers

  std::int64_t rows_per_tile() const { return span * row_block; }
  std::int64_t elements_per_tile() const { return span * block; }

  void run(const KernelArgs& args) const;
};

inline std::int64_t tile_element_size(DType t) { return bit_width(t) / 8; }

}  // namespace backpass
