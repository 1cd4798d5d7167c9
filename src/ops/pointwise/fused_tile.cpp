#include "ops/pointwise/fused_tile.hpp"

#include "graph/op.hpp"
#include "kernels/tile_text.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr const char* kProgram = "program";
constexpr const char* kConstants = "constants";
constexpr const char* kRank = "rank";

TileProgram program_of(const Node& node) {
  auto it = node.attributes.find(kConstants);
  const auto* constants = it == node.attributes.end() ? nullptr : std::get_if<std::vector<Tensor>>(&it->second);
  return read_tile_program(node.attr_string(kProgram),
                           constants == nullptr ? std::span<const Tensor>() : std::span<const Tensor>(*constants));
}

std::size_t rank_of(const Node& node) { return static_cast<std::size_t>(node.attr_int(kRank)); }

void infer(InferContext& c) {
  const std::vector<TileKind> outputs = tile_output_kinds(c.node.attr_string(kProgram));
  for (std::size_t k = 0; k < outputs.size(); ++k) c.set_dtype(k, outputs[k].type);
  Shape shape(rank_of(c.node), Dim(1));
  for (std::size_t i = 0; i < c.input_count(); ++i) shape = rules::broadcast(c, shape, c.shape(i));
  Shape rows = shape;
  if (!rows.empty()) rows.back() = Dim(1);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    c.set_shape(k, outputs[k].shape == TileShape::row ? rows : shape);
  }
}

Kernel prepare(PrepareContext& c) {
  std::vector<Dims> dims;
  Dims full(rank_of(c.node), 1);
  for (const TensorInfo& input : c.inputs) {
    dims.push_back(input.dims);
    full = broadcast_dims(full, input.dims);
  }
  return bind_tile_program(std::make_shared<const TileProgram>(program_of(c.node)), dims, full);
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
                        .is_tile_program = true,
                        .is_lowered = true}};

}  // namespace

void set_tile_program(Node& node, const TileProgram& program, std::size_t rank) {
  TileText text = write_tile_program(program);
  node.attributes[kProgram] = std::move(text.code);
  if (!text.constants.empty()) node.attributes[kConstants] = std::move(text.constants);
  node.attributes[kRank] = static_cast<std::int64_t>(rank);
}

}  // namespace backpass
