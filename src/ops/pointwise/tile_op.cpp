#include "ops/pointwise/tile_op.hpp"

#include "ops/shape_rules.hpp"

namespace backpass {

TileRegister emit_tile(const Node& node, std::span<const TileRegister> inputs, TileBuilder& builder) {
  const TileOp& op = *node.def->tile;
  TileEmit emit{node, inputs, builder};
  if (op.emit != nullptr) return op.emit(emit);
  TileParams params = op.params == nullptr ? TileParams{} : op.params(node);
  switch (inputs.size()) {
    case 1:
      return builder.apply(*op.function, {inputs[0]}, params);
    case 2:
      return builder.apply(*op.function, {inputs[0], inputs[1]}, params);
    case 3:
      return builder.apply(*op.function, {inputs[0], inputs[1], inputs[2]}, params);
    default:
      fail(node.label(), " got ", inputs.size(), " inputs, expected ", op.function->arity);
  }
}

void infer_tile(InferContext& c) {
  DType dtype = c.dtype(0);
  const TileFunction* function = c.node.def->tile->function;
  c.set_dtype(0, function != nullptr && function->gives_bool ? DType::boolean : dtype);
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == dtype, "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(dtype), " as input 0 has; insert a Cast");
  }
  Shape shape = c.shape(0);
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (c.has_input(i)) shape = rules::broadcast(c, shape, c.shape(i));
  }
  c.set_shape(0, std::move(shape));
}

Kernel prepare_tile(PrepareContext& c) {
  TileBuilder builder(c.inputs.size());
  std::vector<TileRegister> registers(c.inputs.size(), kNoRegister);
  std::vector<Dims> dims(c.inputs.size());
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const TensorInfo& input = c.inputs[i];
    if (!input.present) continue;
    bool is_scalar = input.constant != nullptr && input.constant->size() == 1;
    registers[i] = is_scalar ? builder.immediate(*input.constant) : builder.input(i, input.dtype);
    if (input.size() != 1) dims[i] = input.dims;  // a single element broadcasts whatever its rank
  }
  builder.output(emit_tile(c.node, registers, builder), c.out(0).dtype);
  return bind_tile_program(std::make_shared<const TileProgram>(builder.finish()), dims, c.out(0).dims);
}

}  // namespace backpass
