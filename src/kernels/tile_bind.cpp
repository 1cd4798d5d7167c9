#include <algorithm>

#include "kernels/tile_plan.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kCacheBytes = 24 * 1024;  // what the tiles of one program may fill of the first-level cache
constexpr std::int64_t kLengthUnit = 64;
constexpr std::int64_t kMaxLength = 4096;
constexpr std::int64_t kChunkWork = 65536;  // elements times instructions that are worth a thread's attention

// Drops axes of extent 1 and joins neighbours that every operand walks as one.
void coalesce(Dims& dims, std::vector<Dims>& strides) {
  Dims joined;
  std::vector<Dims> kept(strides.size());
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] == 1) continue;
    bool joins = !joined.empty();
    for (std::size_t i = 0; joins && i < strides.size(); ++i) {
      joins = kept[i].back() == strides[i][axis] * dims[axis];
    }
    if (joins) {
      joined.back() *= dims[axis];
      for (std::size_t i = 0; i < strides.size(); ++i) kept[i].back() = strides[i][axis];
    } else {
      joined.push_back(dims[axis]);
      for (std::size_t i = 0; i < strides.size(); ++i) kept[i].push_back(strides[i][axis]);
    }
  }
  if (joined.empty()) {
    joined.push_back(1);
    for (Dims& s : kept) s.push_back(1);
  }
  dims = std::move(joined);
  strides = std::move(kept);
}

// Buffers for temporaries, by liveness: a register that dies gives its buffer to a later one of the same element size.
class TemporaryPlanner {
 public:
  TemporaryPlanner(const TileProgram& program, const std::vector<bool>& wanted) : program_(program), wanted_(wanted) {
    last_use_.assign(program.registers.size(), -1);
    for (std::size_t k = 0; k < program.code.size(); ++k) {
      for (int a = 0; a < program.code[k].arity; ++a) {
        last_use_[static_cast<std::size_t>(program.code[k].in[static_cast<std::size_t>(a)])] = static_cast<int>(k);
      }
    }
  }

  // Calls place(register, slot) for each temporary; slot_sizes() tells the slots' element sizes afterwards.
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
      slot_of[out] = take(tile_element_size(program_.registers[out]));
      place(instruction.out, slot_of[out]);
    }
  }
  const std::vector<std::int64_t>& slot_sizes() const { return sizes_; }

 private:
  // Operands that die here are in free_ already. Loops may overwrite an operand only when element sizes agree, which is
  // what sharing a slot asks for anyway.
  int take(std::int64_t size) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (sizes_[static_cast<std::size_t>(free_[i])] != size) continue;
      int slot = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return slot;
    }
    sizes_.push_back(size);
    return static_cast<int>(sizes_.size() - 1);
  }

  const TileProgram& program_;
  const std::vector<bool>& wanted_;
  std::vector<int> last_use_;
  std::vector<int> free_;
  std::vector<std::int64_t> sizes_;
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
  Binder(std::shared_ptr<const TileProgram> program, std::span<const Dims> inputs, const Dims& output)
      : program_(*program), inputs_(inputs.begin(), inputs.end()) {
    plan_.program = std::move(program);
    plan_.dims = output;
    plan_.total = element_count(output);
  }

  TilePlan bind() {
    if (plan_.total == 0) return std::move(plan_);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      strides_.push_back(is_used(i) ? broadcast_strides(inputs_[i], plan_.dims) : strides_of(plan_.dims));
    }
    coalesce(plan_.dims, strides_);
    place_outputs();
    cut(tile_length());
    place_inputs();
    place_buffers();
    std::int64_t length = plan_.span * plan_.block;
    std::int64_t chunk = kChunkWork / (1 + static_cast<std::int64_t>(program_.code.size()));
    plan_.tiles_per_chunk = std::max<std::int64_t>(1, chunk / length);
    return std::move(plan_);
  }

 private:
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
      plan_.flat.push_back(
          {reg, static_cast<int>(k), true, tile_element_size(program_.registers[static_cast<std::size_t>(reg)])});
    }
    TemporaryPlanner planner(program_, temporary_);
    planner.plan([&](TileRegister reg, int slot) { slots_.emplace_back(reg, slot); });
    slot_sizes_ = planner.slot_sizes();
  }

  bool is_used(std::size_t input) const { return program_.registers[input] != DType::undefined; }
  bool is_flat(std::size_t input) const { return strides_[input] == strides_of(plan_.dims); }

  std::int64_t tile_length() const {
    std::int64_t bytes = static_cast<std::int64_t>(program_.immediates.size()) * 8;
    bool buffered = !slot_sizes_.empty() || !program_.immediates.empty();
    for (std::int64_t size : slot_sizes_) bytes += size;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      bytes += tile_element_size(program_.registers[i]);
      buffered = buffered || !is_flat(i);
    }
    for (TileRegister r : program_.outputs) bytes += tile_element_size(program_.registers[static_cast<std::size_t>(r)]);
    if (!buffered) return kChunkWork / (1 + static_cast<std::int64_t>(program_.code.size()));
    std::int64_t length = kCacheBytes / std::max<std::int64_t>(1, bytes) / kLengthUnit * kLengthUnit;
    return std::clamp(length, kLengthUnit, kMaxLength);
  }

  void cut(std::int64_t length) {
    std::size_t axis = plan_.dims.size();
    while (axis > 1 && plan_.block * plan_.dims[axis - 1] <= length) plan_.block *= plan_.dims[--axis];
    plan_.split = axis - 1;
    std::int64_t extent = plan_.dims[plan_.split];
    std::int64_t most = std::max<std::int64_t>(1, length / plan_.block);
    plan_.tiles_per_row = (extent + most - 1) / most;
    plan_.span = (extent + plan_.tiles_per_row - 1) / plan_.tiles_per_row;  // tiles of about equal length
    if (plan_.block == 1 && plan_.span < extent)
      plan_.span = (plan_.span + kLengthUnit - 1) / kLengthUnit * kLengthUnit;
    plan_.tiles_per_row = (extent + plan_.span - 1) / plan_.span;
    plan_.tiles = product(plan_.dims, 0, plan_.split) * plan_.tiles_per_row;
  }

  void place_inputs() {
    Dims natural = strides_of(plan_.dims);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_used(i)) continue;
      auto reg = static_cast<TileRegister>(i);
      std::int64_t size = tile_element_size(program_.registers[i]);
      if (is_flat(i)) {
        plan_.flat.push_back({reg, static_cast<int>(i), false, size});
        continue;
      }
      auto from = static_cast<std::ptrdiff_t>(plan_.split);
      bool in_one_piece = std::equal(natural.begin() + from, natural.end(), strides_[i].begin() + from);
      plan_.broadcast.push_back({reg, static_cast<int>(i), size, strides_[i], !in_one_piece});
    }
  }

  void place_buffers() {
    std::int64_t length = (plan_.span * plan_.block + kLengthUnit - 1) / kLengthUnit * kLengthUnit;
    std::size_t offset = workspace_header();
    auto take = [&](std::int64_t size) {
      std::size_t at = offset;
      offset += static_cast<std::size_t>(size * length);
      return at;
    };
    for (const TilePlan::BroadcastOperand& b : plan_.broadcast) {
      if (b.expanded) plan_.buffers.push_back({b.reg, take(b.element_size)});
    }
    for (const TileProgram::Immediate& i : program_.immediates) {
      plan_.buffers.push_back({i.out, take(tile_element_size(program_.registers[static_cast<std::size_t>(i.out)]))});
    }
    std::vector<std::size_t> slot_offsets;
    for (std::int64_t size : slot_sizes_) slot_offsets.push_back(take(size));
    for (auto [reg, slot] : slots_) plan_.buffers.push_back({reg, slot_offsets[static_cast<std::size_t>(slot)]});
    plan_.workspace = offset;
  }

  // Pointers to the tiles of all registers, then what each broadcast operand holds.
  std::size_t workspace_header() const {
    std::size_t bytes = program_.registers.size() * sizeof(void*) + plan_.broadcast.size() * 2 * sizeof(std::int64_t);
    return (bytes + 63) / 64 * 64;
  }

  const TileProgram& program_;
  std::vector<Dims> inputs_;
  std::vector<Dims> strides_;
  std::vector<bool> temporary_;
  std::vector<std::pair<TileRegister, int>> slots_;
  std::vector<std::int64_t> slot_sizes_;
  TilePlan plan_;
};

}  // namespace

Kernel bind_tile_program(std::shared_ptr<const TileProgram> program, std::span<const Dims> inputs, const Dims& output) {
  ensure(inputs.size() == program->input_count, "tile program of ", program->input_count, " inputs bound to ",
         inputs.size());
  auto plan = std::make_shared<const TilePlan>(Binder(std::move(program), inputs, output).bind());
  return [plan = std::move(plan)](const KernelArgs& args) { plan->run(args); };
}

}  // namespace backpass
