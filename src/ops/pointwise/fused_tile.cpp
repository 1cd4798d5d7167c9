// backpass.Tile: several pointwise and row-reducing operators as one program. Made by passes/fuse_tiles.cpp only.
#include "graph/op.hpp"
#include "kernels/tile.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

std::shared_ptr<const TileProgram> program_of(const Node& node) {
  auto it = node.attributes.find("program");
  const auto* held = it == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<const void>>(&it->second);
  ensure(held != nullptr && *held != nullptr, shown(node), " has no program");
  return std::static_pointer_cast<const TileProgram>(*held);
}

void infer(InferContext& c) {
  std::shared_ptr<const TileProgram> program = program_of(c.node);
  for (std::size_t k = 0; k < program->outputs.size(); ++k) {
    c.set_dtype(k, program->type(program->outputs[k]));
  }
  Shape shape(static_cast<std::size_t>(c.node.attr_int("rank", 0)), Dim(1));
  for (std::size_t i = 0; i < c.input_count(); ++i) shape = rules::broadcast(c, shape, c.shape(i));
  Shape rows = shape;
  if (!rows.empty()) rows.back() = Dim(1);
  for (std::size_t k = 0; k < program->outputs.size(); ++k) {
    c.set_shape(k, program->shape(program->outputs[k]) == TileShape::row ? rows : shape);
  }
}

Kernel prepare(PrepareContext& c) {
  std::vector<Dims> dims;
  Dims full(static_cast<std::size_t>(c.node.attr_int("rank", 0)), 1);
  for (const TensorInfo& input : c.inputs) {
    dims.push_back(input.dims);
    full = broadcast_dims(full, input.dims);
  }
  return bind_tile_program(program_of(c.node), dims, full);
}

const Register tile_op{{.name = "Tile",
                        .domain = "backpass",
                        .doc = "Several pointwise and row-reducing operators fused into one program over tiles.",
                        .inputs = {1, -1},
                        .outputs = {1, -1},
                        .types = {},
                        .infer = infer,
                        .prepare = prepare,
                        .in_place_input = 0,
                        .is_tile_program = true}};

}  // namespace
}  // namespace backpass
