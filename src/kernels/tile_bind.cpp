#include <algorithm>
#include <utility>

#include "kernels/tile_plan.hpp"
#include "support/strides.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kCacheBytes = 24 * 1024;  // what the tiles of one program may fill of the first-level cache
constexpr std::int64_t kLengthUnit = 64;
constexpr std::int64_t kMaxLength = 4096;
constexpr std::int64_t kChunkWork = 65536;  // elements times instructions that are worth a thread's attention

std::int64_t round_up(std::int64_t n) { return (n + kLengthUnit - 1) / kLengthUnit * kLengthUnit; }

// Drops axes of extent 1 and joins neighbours that every operand walks as one. With `keep_last`, the last axis stays as
// it is, behind at least one other.
void coalesce(Dims& dims, std::vector<Dims>& strides, bool keep_last) {
  Dims joined;
  std::vector<Dims> kept(strides.size());
  auto push = [&](std::int64_t extent, std::size_t axis) {
    joined.push_back(extent);
    for (std::size_t i = 0; i < strides.size(); ++i) kept[i].push_back(axis < dims.size() ? strides[i][axis] : 0);
  };
  const std::size_t count = dims.size() - (keep_last ? 1 : 0);
  for (std::size_t axis = 0; axis < count; ++axis) {
    if (dims[axis] == 1) continue;
    bool joins = !joined.empty();
    for (std::size_t i = 0; joins && i < strides.size(); ++i) {
      joins = kept[i].back() == strides[i][axis] * dims[axis];
    }
    if (!joins) {
      push(dims[axis], axis);
      continue;
    }
    joined.back() *= dims[axis];
    for (std::size_t i = 0; i < strides.size(); ++i) kept[i].back() = strides[i][axis];
  }
  if (joined.empty()) push(1, dims.size());
  if (keep_last) push(dims.back(), dims.size() - 1);
  dims = std::move(joined);
  strides = std::move(kept);
}

// Buffers for temporaries, by liveness: a register that dies gives its buffer to a later one of the same kind.
class TemporaryPlanner {
 public:
  struct Slot {
    std::int64_t element_size;
    bool is_row;
    bool operator==(const Slot&) const = default;
  };

  TemporaryPlanner(const TileProgram& program, const std::vector<bool>& wanted) : program_(program), wanted_(wanted) {
    last_use_.assign(program.registers.size(), -1);
    for (std::size_t k = 0; k < program.code.size(); ++k) {
      for (int a = 0; a < program.code[k].arity; ++a) {
        last_use_[static_cast<std::size_t>(program.code[k].in[static_cast<std::size_t>(a)])] = static_cast<int>(k);
      }
    }
  }

  // The register is read once more when the program has run.
  void keep_to_the_end(TileRegister r) {
    last_use_[static_cast<std::size_t>(r)] = static_cast<int>(program_.code.size());
  }

  // Calls place(register, slot) for each temporary.
  template <class F>
  void plan(F&& place) {
    std::vector<int> slot_of(program_.registers.size(), -1);
    for (std::size_t k = 0; k < program_.code.size(); ++k) {
      const TileProgram::Instruction& instruction = program_.code[k];
      for (int a = 0; a < instruction.arity; ++a) {
        auto r = static_cast<std::size_t>(instruction.in[static_cast<std::size_t>(a)]);
        if (slot_of[r] >= 0 && last_use_[r] == static_cast<int>(k)) free_.push_back(std::exchange(slot_of[r], -1));
      }
      auto out = static_cast<std::size_t>(instruction.out);
      if (!wanted_[out]) continue;
      bool is_row = program_.shape(instruction.out) == TileShape::row;
      slot_of[out] = take({tile_element_size(program_.registers[out]), is_row});
      place(instruction.out, slot_of[out]);
    }
  }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  // Operands that die here are in free_ already. Loops may overwrite an operand only when element sizes agree, which is
  // what sharing a slot asks for anyway.
  int take(const Slot& wanted) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (slots_[static_cast<std::size_t>(free_[i])] != wanted) continue;
      int slot = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return slot;
    }
    slots_.push_back(wanted);
    return static_cast<int>(slots_.size() - 1);
  }

  const TileProgram& program_;
  const std::vector<bool>& wanted_;
  std::vector<int> last_use_;
  std::vector<int> free_;
  std::vector<Slot> slots_;
};

// Output 0 may lie in an input's memory, so it is written there only once no input is read any more.
bool must_be_late(const TileProgram& program, TileRegister output) {
  bool written = false;
  for (const TileProgram::Instruction& i : program.code) {
    for (int a = 0; written && a < i.arity; ++a) {
      if (i.in[static_cast<std::size_t>(a)] < static_cast<TileRegister>(program.input_count)) return true;
    }
    written = written || i.out == output;
  }
  return false;
}

class Binder {
 public:
  Binder(std::shared_ptr<const TileProgram> program, std::span<const Dims> inputs, const Dims& full)
      : program_(*program), inputs_(inputs), has_rows_(program->has_rows()) {
    plan_.program = std::move(program);
    plan_.dims = full;
  }

  TilePlan bind() {
    ensure(!has_rows_ || !plan_.dims.empty(), "a tile program with rows bound to a scalar");
    // Rows without elements still have sums.
    if (product(plan_.dims, 0, plan_.dims.size() - (has_rows_ ? 1 : 0)) == 0) return std::move(plan_);
    find_strides();
    place_outputs();
    cut(tile_length());
    place_inputs();
    place_buffers();
    std::int64_t chunk = kChunkWork / (1 + static_cast<std::int64_t>(program_.code.size()));
    plan_.tiles_per_chunk = std::max<std::int64_t>(1, chunk / std::max<std::int64_t>(1, plan_.elements_per_tile()));
    return std::move(plan_);
  }

 private:
  bool is_row(TileRegister r) const { return program_.shape(r) == TileShape::row; }
  bool is_used(std::size_t input) const { return program_.registers[input] != DType::undefined; }

  void find_strides() {
    bool is_alike = !has_rows_;
    for (std::size_t i = 0; i < inputs_.size(); ++i) is_alike = is_alike && (!is_used(i) || inputs_[i] == plan_.dims);
    if (is_alike) {  // most nodes: one axis, no broadcasting
      plan_.dims.assign(1, product(plan_.dims, 0, plan_.dims.size()));
      strides_.assign(inputs_.size(), Dims{1});
      return;
    }
    strides_.reserve(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      strides_.push_back(is_used(i) ? broadcast_strides(inputs_[i], plan_.dims) : strides_of(plan_.dims));
    }
    coalesce(plan_.dims, strides_, has_rows_);
  }

  void place_outputs() {
    temporary_.assign(program_.registers.size(), false);
    for (const TileProgram::Instruction& i : program_.code) temporary_[static_cast<std::size_t>(i.out)] = true;
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) {
      TileRegister reg = program_.outputs[k];
      if (k == 0 && must_be_late(program_, reg)) {
        plan_.late_outputs.emplace_back(reg, 0);
        continue;
      }
      temporary_[static_cast<std::size_t>(reg)] = false;
      plan_.flat.push_back({reg, static_cast<int>(k), true, is_row(reg), tile_element_size(program_.type(reg))});
    }
    TemporaryPlanner planner(program_, temporary_);
    for (const auto& late : plan_.late_outputs) planner.keep_to_the_end(late.first);
    planner.plan([&](TileRegister reg, int slot) { slot_of_.emplace_back(reg, slot); });
    slots_ = planner.slots();
  }

  // From axis `from` on, the operand's elements follow each other as those of the output do (or of its rows).
  bool lies_like_output(std::size_t input, std::size_t from) const {
    const bool row = is_row(static_cast<TileRegister>(input));
    std::int64_t natural = 1;
    for (std::size_t axis = plan_.dims.size() - (row ? 1 : 0); axis-- > from; natural *= plan_.dims[axis]) {
      if (plan_.dims[axis] != 1 && strides_[input][axis] != natural) return false;
    }
    return true;
  }

  std::int64_t tile_length() const {
    std::int64_t bytes = static_cast<std::int64_t>(program_.immediates.size()) * 8;
    bool buffered = !slots_.empty() || !program_.immediates.empty();
    for (const TemporaryPlanner::Slot& slot : slots_) bytes += slot.is_row ? 0 : slot.element_size;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      bytes += tile_element_size(program_.registers[i]);
      buffered = buffered || !lies_like_output(i, 0);
    }
    for (TileRegister r : program_.outputs) bytes += tile_element_size(program_.type(r));
    if (!buffered) return kChunkWork / (1 + static_cast<std::int64_t>(program_.code.size()));
    std::int64_t length = kCacheBytes / std::max<std::int64_t>(1, bytes) / kLengthUnit * kLengthUnit;
    return std::clamp(length, kLengthUnit, kMaxLength);
  }

  void cut(std::int64_t length) {
    std::size_t axis = plan_.dims.size();
    if (has_rows_) plan_.block = plan_.row_length = plan_.dims[--axis];
    while (axis > 1 && plan_.block * plan_.dims[axis - 1] <= length) plan_.block *= plan_.dims[--axis];
    plan_.split = axis - 1;
    if (has_rows_) plan_.row_block = product(plan_.dims, axis, plan_.dims.size() - 1);
    const std::int64_t extent = plan_.dims[plan_.split];
    const std::int64_t most = std::max<std::int64_t>(1, length / std::max<std::int64_t>(1, plan_.block));
    plan_.tiles_per_line = (extent + most - 1) / most;
    plan_.span = (extent + plan_.tiles_per_line - 1) / plan_.tiles_per_line;  // tiles of about equal length
    if (plan_.block == 1 && plan_.span < extent && !has_rows_) plan_.span = round_up(plan_.span);
    plan_.tiles_per_line = (extent + plan_.span - 1) / plan_.span;
    plan_.tiles = product(plan_.dims, 0, plan_.split) * plan_.tiles_per_line;
  }

  void place_inputs() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_used(i)) continue;
      auto reg = static_cast<TileRegister>(i);
      const std::int64_t size = tile_element_size(program_.registers[i]);
      if (lies_like_output(i, 0)) {
        plan_.flat.push_back({reg, static_cast<int>(i), false, is_row(reg), size});
      } else {
        bool in_one_piece = lies_like_output(i, plan_.split);
        plan_.broadcast.push_back({reg, static_cast<int>(i), size, strides_[i], is_row(reg), !in_one_piece});
      }
    }
  }

  void place_buffers() {
    const std::int64_t rows = round_up(plan_.rows_per_tile());
    const std::int64_t length = std::max(round_up(plan_.elements_per_tile()), rows);
    std::size_t offset = workspace_header();
    auto take = [&](std::int64_t size, bool row) {
      std::size_t at = offset;
      offset += static_cast<std::size_t>(size * (row ? rows : length));
      return at;
    };
    for (const TilePlan::BroadcastOperand& b : plan_.broadcast) {
      if (b.expanded) plan_.buffers.push_back({b.reg, take(b.element_size, b.is_row)});
    }
    for (const TileProgram::Immediate& i : program_.immediates) {
      plan_.buffers.push_back({i.out, take(tile_element_size(program_.type(i.out)), false)});
    }
    std::vector<std::size_t> slot_offsets;
    for (const TemporaryPlanner::Slot& slot : slots_) slot_offsets.push_back(take(slot.element_size, slot.is_row));
    for (auto [reg, slot] : slot_of_) plan_.buffers.push_back({reg, slot_offsets[static_cast<std::size_t>(slot)]});
    plan_.workspace = offset;
  }

  // Pointers to the tiles of all registers, then what each broadcast operand holds.
  std::size_t workspace_header() const {
    std::size_t bytes = program_.registers.size() * sizeof(void*) + plan_.broadcast.size() * 2 * sizeof(std::int64_t);
    return (bytes + 63) / 64 * 64;
  }

  const TileProgram& program_;
  std::span<const Dims> inputs_;
  bool has_rows_;
  std::vector<Dims> strides_;
  std::vector<bool> temporary_;
  std::vector<std::pair<TileRegister, int>> slot_of_;
  std::vector<TemporaryPlanner::Slot> slots_;
  TilePlan plan_;
};

}  // namespace

Kernel bind_tile_program(std::shared_ptr<const TileProgram> program, std::span<const Dims> inputs, const Dims& full) {
  ensure(inputs.size() == program->input_count, "tile program of ", program->input_count, " inputs bound to ",
         inputs.size());
  auto plan = std::make_shared<const TilePlan>(Binder(std::move(program), inputs, full).bind());
  return [plan = std::move(plan)](const KernelArgs& args) { plan->run(args); };
}

}  // namespace backpass
