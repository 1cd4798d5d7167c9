// Pointwise functions, and the short programs over tiles that run them.
//
// A TileFunction is a function of corresponding elements, compiled as a loop per element type and instruction set. A
// TileProgram is a list of such functions over virtual registers; a register is a tile, a piece of a tensor that stays
// in the first-level cache while the whole program runs over it. One node alone and a fused group of nodes both run as
// a TileProgram; which functions a node stands for is said in ops/pointwise/tile_op.hpp.
//
//   node(s) ─ TileBuilder ─► TileProgram (element types) ─ bind ─► TilePlan (extents) ─ run ─► memory
//
// float16 and bfloat16 are widened to float32 when loaded and rounded to nearest even when stored. Inside one program
// nothing is rounded in between, so a fused chain of 16-bit operators is more exact than the same nodes run one by one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/tensor.hpp"
#include "support/kernel.hpp"

namespace backpass {

inline constexpr std::size_t kTileOperands = 3;
using TileParams = std::array<double, 3>;

/// out[i] = f(in[0][i], in[1][i], ...) for i in [0, n). `out` may be the very memory of an operand of the same size.
using TileLoop = void (*)(const void* const* in, void* out, std::int64_t n, const TileParams& params);

/// Closed at both ends.
struct TileLimits {
  double low;
  double high;
};

struct TileFunction {
  std::string_view name;  ///< unique
  int arity = 1;
  /// The loop for this type of the last operand (float32 stands for the 16-bit floats too); null when there is none.
  TileLoop (*loop)(DType) = nullptr;
  /// The result is bool; otherwise it has the type of the last operand.
  bool gives_bool = false;
  /// Given where f(x) is x kept within limits, which some loops do on their own.
  TileLimits (*limits)(const TileParams&) = nullptr;
};

/// Makes a function known by its name; a second one of that name is an error. BACKPASS_TILE_FUNCTION does this.
class RegisterTileFunction {
 public:
  explicit RegisterTileFunction(const TileFunction& function);
};

/// Null when there is none.
const TileFunction* find_tile_function(std::string_view name);

/// A loop over memory in place, with its parameters.
struct TileCall {
  TileLoop loop = nullptr;  ///< null: nothing to do
  TileParams params{};

  explicit operator bool() const { return loop != nullptr; }
  void operator()(void* values, std::int64_t n) const {
    const void* in[] = {values};
    loop(in, values, n, params);
  }
};

/// A function of one operand, or none: what follows a product or convolution while the result is in cache.
struct UnaryTile {
  const TileFunction* function = nullptr;
  TileParams params{};

  explicit operator bool() const { return function != nullptr; }
  TileCall bind(DType t) const { return function != nullptr ? TileCall{function->loop(t), params} : TileCall{}; }
};

/// Between `rows` runs of `length` consecutive elements and one element for each of them.
using TileRowLoop = void (*)(const void* in, void* out, std::int64_t rows, std::int64_t length);

/// A function of all elements along the last axis.
struct TileReduction {
  std::string_view name;
  TileRowLoop (*loop)(DType) = nullptr;  ///< null when there is none for this type
};

/// A virtual register of a program.
using TileRegister = int;
inline constexpr TileRegister kNoRegister = -1;

/// What a register holds an element for. Programs that reduce along the last axis work on whole rows at a time.
enum class TileShape : std::uint8_t {
  full,  ///< each element of the output shape
  row,   ///< each row: the output shape with 1 as its last extent
  any,   ///< a constant: serves as both
};

struct TileProgram {
  struct Instruction {
    TileLoop loop = nullptr;         ///< element by element, or
    TileRowLoop row_loop = nullptr;  ///< from rows to elements or back
    std::string_view name;
    std::array<TileRegister, kTileOperands> in{kNoRegister, kNoRegister, kNoRegister};
    int arity = 1;
    TileRegister out = kNoRegister;
    TileParams params{};
  };
  struct Immediate {
    TileRegister out;
    std::array<std::byte, 8> element;
  };

  std::vector<DType> registers;   ///< element types; the first `input_count` registers are the inputs as stored
  std::vector<TileShape> shapes;  ///< of all registers
  std::size_t input_count = 0;
  std::vector<Immediate> immediates;
  std::vector<Instruction> code;
  std::vector<TileRegister> outputs;  ///< each written by exactly one instruction

  DType type(TileRegister r) const { return registers[static_cast<std::size_t>(r)]; }
  TileShape shape(TileRegister r) const { return shapes[static_cast<std::size_t>(r)]; }
  bool has_rows() const;
  std::string str() const;  ///< "Mul Add Tanh"
};

/// The type arithmetic on `t` happens in: float32 for the 16-bit floats, else `t` itself.
DType tile_compute_type(DType t);

/// True for element types that can be held in a tile register.
bool is_tile_type(DType t);

/// Writes a TileProgram. Registers handed out hold compute types; widening and rounding are inserted here.
class TileBuilder {
 public:
  explicit TileBuilder(std::size_t input_count);

  /// Declares input `index` (of those announced) as having this stored type.
  TileRegister input(std::size_t index, DType stored, TileShape shape = TileShape::full);
  TileRegister immediate(double value, DType type);
  /// The only element of a tensor.
  TileRegister immediate(const Tensor& scalar);
  /// Rows and full operands mix: rows are spread out. Unsupported when the function has no loop for the operands.
  TileRegister apply(const TileFunction& function, std::initializer_list<TileRegister> operands,
                     const TileParams& params = {});
  /// The same with a result type of its own.
  TileRegister apply_as(const TileFunction& function, std::initializer_list<TileRegister> operands, DType result,
                        const TileParams& params = {});
  /// Any number or bool to float32, float64 or bool; integers to int64; float32 to the 16-bit floats and back.
  TileRegister convert(TileRegister value, DType to);
  /// One element per row.
  TileRegister reduce(const TileReduction& reduction, TileRegister value);
  void output(TileRegister value, DType stored, TileShape shape = TileShape::full);

  DType type(TileRegister r) const { return program_.type(r); }
  TileShape shape(TileRegister r) const { return program_.shape(r); }
  /// What the register always holds, if it is an immediate.
  std::optional<double> constant(TileRegister r) const;
  std::size_t size() const { return program_.code.size(); }

  /// The program, without instructions that no output needs.
  TileProgram finish();

 private:
  TileRegister fresh(DType type, TileShape shape);
  TileRegister copy(TileRegister value, TileShape shape);
  TileRegister spread(TileRegister row);
  TileRegister unwidened(TileRegister value, DType stored) const;

  TileProgram program_;
  std::map<TileRegister, TileRegister> spread_;  // rows -> the same for every element
};

/// Binds a program to extents: inputs broadcast to `full`, and every output of the program has that shape (those of
/// rows end in 1 instead). The memory of output 0 may be that of an input of the same size.
Kernel bind_tile_program(std::shared_ptr<const TileProgram> program, std::span<const Dims> inputs, const Dims& full);

}  // namespace backpass
