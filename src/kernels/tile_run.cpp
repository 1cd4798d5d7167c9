#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/thread_buffer.hpp"
#include "kernels/tile_plan.hpp"
#include "kernels/tile_reduce.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::size_t kStackBytes = 48 * 1024;

template <class T>
T* expand(const T* from, T* to, const std::int64_t* dims, const std::int64_t* strides, std::size_t rank) {
  if (rank == 1) {
    if (strides[0] == 0) return fill_run(to, dims[0], *from);
    if (strides[0] == 1) return std::copy_n(from, dims[0], to);
    for (std::int64_t i = 0; i < dims[0]; ++i) *to++ = from[i * strides[0]];
    return to;
  }
  T* first = to;
  to = expand(from, to, dims + 1, strides + 1, rank - 1);
  const std::ptrdiff_t block = to - first;
  for (std::int64_t i = 1; i < dims[0]; ++i) {
    to = strides[0] == 0 ? std::copy_n(first, block, to)
                         : expand(from + i * strides[0], to, dims + 1, strides + 1, rank - 1);
  }
  return to;
}

// The first `indices` indices of the split axis, from an operand that broadcasts.
void expand_tile(const TilePlan& plan, const TilePlan::BroadcastOperand& operand, const void* from, void* to,
                 std::int64_t indices) {
  const std::size_t rank = plan.dims.size() - plan.split - (operand.is_row ? 1 : 0);
  const std::int64_t block = operand.is_row ? plan.row_block : plan.block;
  const std::int64_t* strides = operand.strides.data() + plan.split;
  auto typed = [&]<class T>() {
    const T* source = static_cast<const T*>(from);
    T* target = static_cast<T*>(to);
    if (rank == 1) {
      expand(source, target, &indices, strides, 1);
      return;
    }
    for (std::int64_t i = 0; i < indices; ++i) {
      bool again = i > 0 && strides[0] == 0;
      target = again
                   ? std::copy_n(static_cast<T*>(to), block, target)
                   : expand(source + i * strides[0], target, plan.dims.data() + plan.split + 1, strides + 1, rank - 1);
    }
  };
  visit_element_size(operand.element_size, typed);
}

void fill(const std::array<std::byte, 8>& element, std::int64_t size, std::byte* to, std::int64_t n) {
  visit_element_size(size, [&]<class T>() {
    T value;
    std::memcpy(&value, element.data(), sizeof(T));
    fill_run(reinterpret_cast<T*>(to), n, value);
  });
}

// One thread's work on a run of tiles.
class TileWorker {
 public:
  TileWorker(const TilePlan& plan, const KernelArgs& args, std::byte* memory)
      : plan_(plan),
        program_(*plan.program),
        args_(args),
        tile_(reinterpret_cast<std::byte**>(memory)),
        held_(reinterpret_cast<Held*>(tile_ + program_.registers.size())) {
    std::fill_n(held_, plan.broadcast.size(), Held{-1, 0});
    for (const TilePlan::Buffer& b : plan.buffers) tile_[b.reg] = memory + b.offset;
    for (const TileProgram::Immediate& i : program_.immediates) {
      fill(i.element, tile_element_size(program_.type(i.out)), tile_[i.out],
           std::max(plan.elements_per_tile(), plan.rows_per_tile()));
    }
  }

  void run(std::int64_t index) {
    const std::int64_t line = index / plan_.tiles_per_line;
    const std::int64_t first = (index - line * plan_.tiles_per_line) * plan_.span;
    const std::int64_t extent = plan_.dims[plan_.split];
    const std::int64_t indices = std::min(plan_.span, extent - first);
    const std::int64_t position = line * extent + first;
    for (const TilePlan::FlatOperand& f : plan_.flat) {
      std::byte* base = f.is_output ? static_cast<std::byte*>(args_.outputs[f.tensor]) : input(f.tensor);
      tile_[f.reg] = base + position * (f.is_row ? plan_.row_block : plan_.block) * f.element_size;
    }
    for (std::size_t k = 0; k < plan_.broadcast.size(); ++k) locate_broadcast(k, line, first, indices);
    execute(indices * plan_.block, indices * plan_.row_block);
    for (auto [reg, output] : plan_.late_outputs) {
      const std::int64_t block = program_.shape(reg) == TileShape::row ? plan_.row_block : plan_.block;
      const std::int64_t bytes = block * tile_element_size(program_.type(reg));
      std::memcpy(static_cast<std::byte*>(args_.outputs[output]) + position * bytes, tile_[reg],
                  static_cast<std::size_t>(indices * bytes));
    }
  }

 private:
  struct Held {  // by the buffer of a broadcast operand
    std::int64_t offset, indices;
  };

  std::byte* input(int i) const { return static_cast<std::byte*>(const_cast<void*>(args_.inputs[i])); }

  void locate_broadcast(std::size_t k, std::int64_t line, std::int64_t first, std::int64_t indices) {
    const TilePlan::BroadcastOperand& b = plan_.broadcast[k];
    std::int64_t offset = first * b.strides[plan_.split];
    for (std::size_t axis = plan_.split; axis-- > 0;) {
      offset += line % plan_.dims[axis] * b.strides[axis];
      line /= plan_.dims[axis];
    }
    std::byte* source = input(b.tensor) + offset * b.element_size;
    if (!b.expanded) {
      tile_[b.reg] = source;
    } else if (held_[k].offset != offset || held_[k].indices < indices) {
      expand_tile(plan_, b, source, tile_[b.reg], indices);
      held_[k] = {offset, indices};
    }
  }

  void execute(std::int64_t elements, std::int64_t rows) {
    const std::int64_t lengths[] = {elements, rows, std::max(elements, rows)};  // by TileShape
    for (const TileProgram::Instruction& i : program_.code) {
      if (i.row_loop != nullptr) {
        i.row_loop(tile_[i.in[0]], tile_[i.out], rows, plan_.row_length);
        continue;
      }
      const void* in[kTileOperands] = {tile_[i.in[0]], i.arity > 1 ? tile_[i.in[1]] : nullptr,
                                       i.arity > 2 ? tile_[i.in[2]] : nullptr};
      i.loop(in, tile_[i.out], lengths[static_cast<std::size_t>(program_.shape(i.out))], i.params);
    }
  }

  const TilePlan& plan_;
  const TileProgram& program_;
  const KernelArgs& args_;
  std::byte** tile_;  // of every register
  Held* held_;
};

}  // namespace

void TilePlan::run(const KernelArgs& args) const {
  auto chunk = [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::byte stack[kStackBytes];
    std::byte* memory = stack;
    if (workspace > kStackBytes) memory = thread_buffer<std::byte, kTiles>(static_cast<std::int64_t>(workspace));
    TileWorker worker(*this, args, memory);
    for (std::int64_t t = begin; t < end; ++t) worker.run(t);
  };
  if (tiles > tiles_per_chunk) {
    parallel_for(tiles, tiles_per_chunk, chunk);
  } else if (tiles > 0) {
    chunk(0, tiles);
  }
}

}  // namespace backpass
