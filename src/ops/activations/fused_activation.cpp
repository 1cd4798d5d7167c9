#include "ops/activations/fused_activation.hpp"

#include <algorithm>
#include <vector>

#include "ops/pointwise/tile_op.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

constexpr const char* kName = "activation";
constexpr const char* kParameters = "activation_parameters";

bool keeps_type_and_rank(const Value* x, const Value* y) {
  return x != nullptr && x->type.is_tensor() && is_float(x->type.dtype) && y->type.dtype == x->type.dtype &&
         x->type.shape && y->type.shape && x->type.shape->size() == y->type.shape->size();
}

bool is_immediate(const Value* v) {
  return v->constant && v->constant->size() == 1 && is_tile_type(v->constant->dtype());
}

/// The node's program for an input of this type; none when another input is not known yet.
std::optional<TileProgram> program_of(const Node& node, DType type) {
  TileBuilder builder(1);
  std::vector<TileRegister> registers{builder.input(0, type)};
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    const Value* v = node.input(i);
    if (v != nullptr && !is_immediate(v)) return std::nullopt;
    registers.push_back(v == nullptr ? kNoRegister : builder.immediate(*v->constant));
  }
  builder.output(emit_tile(node, registers, builder), type);
  return builder.finish();
}

}  // namespace

std::optional<UnaryTile> unary_tile(const Node& node) {
  if (node.def == nullptr || node.def->tile == nullptr || node.outputs.size() != 1) return std::nullopt;
  if (!keeps_type_and_rank(node.input(0), node.output(0))) return std::nullopt;
  std::optional<TileProgram> program = program_of(node, tile_compute_type(node.input(0)->type.dtype));
  if (!program || program->code.size() != 1) return std::nullopt;
  const TileProgram::Instruction& only = program->code.front();
  const TileFunction* function = find_tile_function(only.name);
  if (function == nullptr || function->arity != 1) return std::nullopt;
  return UnaryTile{function, only.params};
}

void set_activation(Node& node, const UnaryTile& activation) {
  if (!activation) return;
  node.attributes[kName] = std::string(activation.function->name);
  const TileParams& p = activation.params;
  Tensor parameters(DType::float64, {static_cast<std::int64_t>(p.size())});
  std::copy(p.begin(), p.end(), parameters.as<double>());
  node.attributes[kParameters] = std::move(parameters);
}

void check_activation(InferContext& c) {
  if (!c.node.has_attribute(kName)) return;
  const std::string name = c.node.attr_string(kName);
  const TileFunction* function = find_tile_function(name);
  c.require(function != nullptr && function->arity == 1 && !function->gives_bool, "attribute activation: got ",
            printable(name), ", expected the name of a tile function of one operand");
  const Tensor* p = c.node.attr_tensor(kParameters);
  c.require(
      p == nullptr || (p->dtype() == DType::float64 && p->size() == static_cast<std::int64_t>(TileParams{}.size())),
      "attribute activation_parameters: got another tensor, expected ", TileParams{}.size(), " float64 numbers");
}

UnaryTile activation_of(const Node& node) {
  if (!node.has_attribute(kName)) return {};
  UnaryTile result{find_tile_function(node.attr_string(kName)), {}};
  if (const Tensor* p = node.attr_tensor(kParameters)) std::copy_n(p->as<double>(), p->size(), result.params.begin());
  return result;
}

}  // namespace backpass
