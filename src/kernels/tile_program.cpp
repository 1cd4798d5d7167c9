#include <algorithm>
#include <cstring>

#include "kernels/tile.hpp"
#include "kernels/tile_convert.hpp"
#include "kernels/tile_reduce.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

TileProgram::Instruction unary(TileLoop loop, std::string_view name, TileRegister in, TileRegister out) {
  return {.loop = loop, .name = name, .in = {in, kNoRegister, kNoRegister}, .out = out};
}

TileProgram::Instruction between_rows(TileRowLoop loop, std::string_view name, TileRegister in, TileRegister out) {
  return {.row_loop = loop, .name = name, .in = {in, kNoRegister, kNoRegister}, .out = out};
}

bool is_half(DType t) { return t == DType::float16 || t == DType::bfloat16; }

}  // namespace

std::string TileProgram::str() const {
  std::string text;
  for (const Instruction& i : code) text += (text.empty() ? "" : " ") + std::string(i.name);
  return text;
}

bool TileProgram::has_rows() const {
  return std::any_of(code.begin(), code.end(), [](const Instruction& i) { return i.row_loop != nullptr; });
}

DType tile_compute_type(DType t) { return is_half(t) ? DType::float32 : t; }

bool is_tile_type(DType t) { return is_float(t) || is_integer(t) || t == DType::boolean || t == DType::complex64; }

TileBuilder::TileBuilder(std::size_t input_count) {
  program_.input_count = input_count;
  program_.registers.assign(input_count, DType::undefined);
  program_.shapes.assign(input_count, TileShape::full);
}

TileRegister TileBuilder::fresh(DType type, TileShape shape) {
  program_.registers.push_back(type);
  program_.shapes.push_back(shape);
  return static_cast<TileRegister>(program_.registers.size() - 1);
}

TileRegister TileBuilder::input(std::size_t index, DType stored, TileShape shape) {
  if (!is_tile_type(stored)) unsupported_dtype(stored);
  program_.registers.at(index) = stored;
  program_.shapes.at(index) = shape;
  return convert(static_cast<TileRegister>(index), tile_compute_type(stored));
}

TileRegister TileBuilder::immediate(double value, DType type) {
  Tensor scalar(type, {});
  visit_numeric(type, [&]<class T>() { *scalar.as<T>() = T(value); });
  return immediate(scalar);
}

TileRegister TileBuilder::immediate(const Tensor& scalar) {
  ensure(scalar.size() == 1, "immediate operand of ", scalar.size(), " elements");
  DType type = tile_compute_type(scalar.dtype());
  TileProgram::Immediate immediate{fresh(type, TileShape::any), {}};
  if (is_half(scalar.dtype())) {
    float wide = static_cast<float>(scalar.to_doubles()[0]);
    std::memcpy(immediate.element.data(), &wide, sizeof(wide));
  } else {
    std::memcpy(immediate.element.data(), scalar.data(), scalar.bytes());
  }
  program_.immediates.push_back(immediate);
  return immediate.out;
}

std::optional<double> TileBuilder::constant(TileRegister r) const {
  for (const TileProgram::Immediate& i : program_.immediates) {
    if (i.out != r || type(r) == DType::complex64) continue;
    Tensor element(type(r), {});  // aligned, as bytes within a program are not
    std::memcpy(element.mutable_data(), i.element.data(), element.bytes());
    return element.to_doubles()[0];
  }
  return std::nullopt;
}

TileRegister TileBuilder::apply(const TileFunction& function, std::initializer_list<TileRegister> operands,
                                const TileParams& params) {
  DType key = type(*(operands.end() - 1));
  return apply_as(function, operands, function.gives_bool ? DType::boolean : key, params);
}

TileRegister TileBuilder::apply_as(const TileFunction& function, std::initializer_list<TileRegister> operands,
                                   DType result, const TileParams& params) {
  ensure(operands.size() == static_cast<std::size_t>(function.arity), function.name, " given ", operands.size(),
         " operands");
  DType key = type(*(operands.end() - 1));
  TileProgram::Instruction instruction{.loop = function.loop(key), .name = function.name};
  if (instruction.loop == nullptr) unsupported_dtype(key);
  TileShape shape = TileShape::any;
  for (TileRegister r : operands) shape = std::min(shape, this->shape(r));
  std::transform(operands.begin(), operands.end(), instruction.in.begin(), [&](TileRegister r) {
    return shape == TileShape::full && this->shape(r) == TileShape::row ? spread(r) : r;
  });
  instruction.arity = function.arity;
  instruction.out = fresh(result, shape);
  instruction.params = params;
  program_.code.push_back(instruction);
  return instruction.out;
}

TileRegister TileBuilder::convert(TileRegister value, DType to) {
  DType from = type(value);
  if (from == to) return value;
  TileLoop loop = tile_convert_loop(from, to);
  if (loop == nullptr) fail<Unsupported>("conversion of ", name_of(from), " to ", name_of(to), " in a tile program");
  TileRegister result = fresh(to, shape(value));
  program_.code.push_back(unary(loop, kTileCast, value, result));
  return result;
}

TileRegister TileBuilder::copy(TileRegister value, TileShape shape) {
  TileRegister result = fresh(type(value), shape);
  program_.code.push_back(unary(tile_copy_loop(type(value)), kTileCopy, value, result));
  return result;
}

TileRegister TileBuilder::spread(TileRegister row) {
  auto [it, added] = spread_.emplace(row, kNoRegister);
  if (added) {
    it->second = fresh(type(row), TileShape::full);
    program_.code.push_back(between_rows(tile_spread_loop(type(row)), kTileSpread, row, it->second));
  }
  return it->second;
}

TileRegister TileBuilder::reduce(const TileReduction& reduction, TileRegister value) {
  TileRowLoop loop = reduction.loop(type(value));
  if (loop == nullptr) unsupported_dtype(type(value));
  if (shape(value) == TileShape::row) value = spread(value);
  TileRegister result = fresh(type(value), TileShape::row);
  program_.code.push_back(between_rows(loop, reduction.name, value, result));
  return result;
}

// The register of this stored type that `value` was widened from, else none.
TileRegister TileBuilder::unwidened(TileRegister value, DType stored) const {
  if (!is_half(stored)) return kNoRegister;
  for (const TileProgram::Instruction& i : program_.code) {
    if (i.out == value && i.name == kTileCast && type(i.in[0]) == stored) return i.in[0];
  }
  return kNoRegister;
}

void TileBuilder::output(TileRegister value, DType stored, TileShape shape) {
  if (shape == TileShape::full && this->shape(value) == TileShape::row) value = spread(value);
  TileRegister narrow = unwidened(value, stored);
  TileRegister result = narrow != kNoRegister ? narrow : convert(value, stored);
  auto is_computed = [&](const TileProgram::Instruction& i) { return i.out == result; };
  bool computed = std::any_of(program_.code.begin(), program_.code.end(), is_computed);
  bool taken = std::find(program_.outputs.begin(), program_.outputs.end(), result) != program_.outputs.end();
  program_.outputs.push_back(computed && !taken && this->shape(result) == shape ? result : copy(result, shape));
}

TileProgram TileBuilder::finish() {
  std::vector<bool> needed(program_.registers.size(), false);
  for (TileRegister r : program_.outputs) needed[static_cast<std::size_t>(r)] = true;
  std::vector<TileProgram::Instruction> kept;
  for (auto it = program_.code.rbegin(); it != program_.code.rend(); ++it) {
    if (!needed[static_cast<std::size_t>(it->out)]) continue;
    for (int a = 0; a < it->arity; ++a) needed[static_cast<std::size_t>(it->in[static_cast<std::size_t>(a)])] = true;
    kept.push_back(*it);
  }
  program_.code.assign(kept.rbegin(), kept.rend());
  std::erase_if(program_.immediates,
                [&](const TileProgram::Immediate& i) { return !needed[static_cast<std::size_t>(i.out)]; });
  return std::move(program_);
}

}  // namespace backpass
