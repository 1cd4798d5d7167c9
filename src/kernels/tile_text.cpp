#include "kernels/tile_text.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "kernels/tile_convert.hpp"
#include "kernels/tile_reduce.hpp"

namespace backpass {
namespace {

constexpr std::string_view kEnd = "; ";
constexpr std::string_view kIn = "in ";
constexpr std::string_view kOut = "out ";
constexpr std::string_view kShapes[] = {"full", "row", "any"};  // by TileShape
constexpr DType kTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::boolean,
                            DType::int64,   DType::int32,   DType::int16,   DType::int8,     DType::uint64,
                            DType::uint32,  DType::uint16,  DType::uint8,   DType::complex64};

// ---- Writing

std::string kind_of(const TileProgram& program, TileRegister r) {
  std::string kind(name_of(program.type(r)));
  const TileShape shape = program.shape(r);
  if (shape != TileShape::full) kind.append(" ").append(kShapes[static_cast<std::size_t>(shape)]);
  return kind;
}

/// The shortest text that is read as the same number.
std::string number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string parameters(const TileParams& params) {
  std::size_t count = params.size();
  while (count > 0 && params[count - 1] == 0) --count;
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += " " + number(params[i]);
  return text;
}

Tensor constant_of(const TileProgram& program, const TileProgram::Immediate& immediate) {
  Tensor element(program.type(immediate.out), {});
  std::memcpy(element.mutable_data(), immediate.element.data(), element.bytes());
  return element;
}

// ---- Reading

/// Parts of a text one after the other.
class Parts {
 public:
  Parts(std::string_view text, std::string_view separator) : rest_(text), separator_(separator) {}

  bool empty() const { return rest_.empty(); }
  std::string_view next() {
    const std::size_t at = rest_.find(separator_);
    const std::string_view part = rest_.substr(0, at);
    rest_ = at == std::string_view::npos ? std::string_view() : rest_.substr(at + separator_.size());
    return part;
  }
  /// The next one if it is a number.
  template <class T>
  bool take(T& value) {
    const char* end = rest_.data() + std::min(rest_.find(separator_), rest_.size());
    const auto [stop, error] = std::from_chars(rest_.data(), end, value);
    if (rest_.empty() || error != std::errc() || stop != end) return false;
    next();
    return true;
  }

 private:
  std::string_view rest_;
  std::string_view separator_;
};

DType type_named(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType t) { return name_of(t) == name; });
  ensure(found != std::end(kTypes), "tile program: element type ", name);
  return *found;
}

/// `float32 row`; what follows stays.
TileKind read_kind(Parts& words) {
  const DType type = type_named(words.next());
  Parts behind = words;
  const auto* shape = std::find(std::begin(kShapes), std::end(kShapes), behind.next());
  if (shape == std::end(kShapes)) return {type, TileShape::full};
  words = behind;
  return {type, static_cast<TileShape>(shape - std::begin(kShapes))};
}

TileRegister read_register(Parts& words) {
  TileRegister r = kNoRegister;
  const bool is_number = words.take(r);
  ensure(is_number, "tile program: a register is missing");
  return r;
}

class Reader {
 public:
  TileProgram run(std::string_view code, std::span<const Tensor> constants) {
    Parts lines(code, kEnd);
    std::string_view line = lines.next();
    for (; line.starts_with(kIn); line = lines.next()) {
      Parts words(line.substr(kIn.size()), " ");
      fresh(read_kind(words));
    }
    program_.input_count = program_.registers.size();
    for (const Tensor& t : constants) add_constant(t);
    for (; !line.starts_with(kOut); line = lines.next()) add_instruction(Parts(line, " "));
    for (; !line.empty(); line = lines.next()) {
      Parts words(line.substr(kOut.size()), " ");
      program_.outputs.push_back(known(read_register(words)));
    }
    return std::move(program_);
  }

 private:
  TileRegister fresh(const TileKind& kind) {
    program_.registers.push_back(kind.type);
    program_.shapes.push_back(kind.shape);
    return static_cast<TileRegister>(program_.registers.size() - 1);
  }

  TileRegister known(TileRegister r) const {
    ensure(r >= 0 && static_cast<std::size_t>(r) < program_.registers.size(), "tile program: register ", r);
    return r;
  }

  void add_constant(const Tensor& t) {
    TileProgram::Immediate immediate{fresh({t.dtype(), TileShape::any}), {}};
    std::memcpy(immediate.element.data(), t.data(), t.bytes());
    program_.immediates.push_back(immediate);
  }

  void add_instruction(Parts words) {
    TileProgram::Instruction instruction;
    const std::string_view name = words.next();
    ensure(!name.empty(), "tile program without outputs");
    instruction.arity = 0;
    for (TileRegister r = 0; words.take(r);)
      instruction.in.at(static_cast<std::size_t>(instruction.arity++)) = known(r);
    ensure(instruction.arity > 0, "tile program: ", name, " of nothing");
    instruction.out = fresh(read_kind(words));
    for (std::size_t i = 0; !words.empty(); ++i) {
      const bool is_number = words.take(instruction.params.at(i));
      ensure(is_number, "tile program: parameters of ", name);
    }
    find_loop(name, instruction);
    program_.code.push_back(instruction);
  }

  void find_loop(std::string_view name, TileProgram::Instruction& i) const {
    const DType first = program_.type(i.in[0]);
    if (const TileReduction* reduction = find_tile_reduction(name)) {
      i.name = reduction->name;
      i.row_loop = reduction->loop(first);
    } else if (name == kTileSpread) {
      i.name = kTileSpread;
      i.row_loop = tile_spread_loop(first);
    } else if (name == kTileCast) {
      i.name = kTileCast;
      i.loop = tile_convert_loop(first, program_.type(i.out));
    } else if (name == kTileCopy) {
      i.name = kTileCopy;
      i.loop = tile_copy_loop(first);
    } else if (const TileFunction* function = find_tile_function(name)) {
      i.name = function->name;
      i.loop = function->loop(program_.type(i.in.at(static_cast<std::size_t>(i.arity - 1))));
    }
    ensure(i.loop != nullptr || i.row_loop != nullptr, "tile program: no loop for ", name);
  }

  TileProgram program_;
};

}  // namespace

TileText write_tile_program(const TileProgram& program) {
  TileText text;
  std::vector<int> numbers(program.registers.size(), -1);
  int next = 0;
  auto is_next = [&](TileRegister r) { numbers[static_cast<std::size_t>(r)] = next++; };
  auto number_of = [&](TileRegister r) { return std::to_string(numbers[static_cast<std::size_t>(r)]); };
  for (std::size_t i = 0; i < program.input_count; ++i) {
    is_next(static_cast<TileRegister>(i));
    text.code.append(kIn).append(kind_of(program, static_cast<TileRegister>(i))).append(kEnd);
  }
  for (const TileProgram::Immediate& immediate : program.immediates) {
    is_next(immediate.out);
    text.constants.push_back(constant_of(program, immediate));
  }
  for (const TileProgram::Instruction& i : program.code) {
    text.code += i.name;
    for (int a = 0; a < i.arity; ++a) text.code.append(" ").append(number_of(i.in[static_cast<std::size_t>(a)]));
    text.code.append(" ").append(kind_of(program, i.out)).append(parameters(i.params)).append(kEnd);
    is_next(i.out);
  }
  for (TileRegister r : program.outputs) {
    text.code.append(kOut).append(number_of(r)).append(" ").append(kind_of(program, r)).append(kEnd);
  }
  text.code.resize(text.code.size() - kEnd.size());
  return text;
}

std::vector<TileKind> tile_output_kinds(std::string_view code) {
  std::vector<TileKind> kinds;
  const std::size_t first = code.find(std::string(kEnd).append(kOut));
  ensure(first != std::string_view::npos, "tile program without outputs");
  for (Parts lines(code.substr(first + kEnd.size()), kEnd); !lines.empty();) {
    Parts words(lines.next().substr(kOut.size()), " ");
    read_register(words);
    kinds.push_back(read_kind(words));
  }
  return kinds;
}

TileProgram read_tile_program(std::string_view code, std::span<const Tensor> constants) {
  return Reader().run(code, constants);
}

}  // namespace backpass
