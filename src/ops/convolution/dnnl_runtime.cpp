#include "ops/convolution/dnnl_runtime.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "backpass/tensor.hpp"
#include "support/parallel.hpp"

namespace backpass {

const dnnl::engine& dnnl_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct SoloPrimitive::State {
  dnnl::primitive primitive;
  std::vector<Operand> operands;
  // Memory objects are costly to make, so they are made once and lent to one run at a time.
  using Handles = std::array<dnnl::memory, kMostOperands>;
  std::mutex mutex;
  std::vector<std::unique_ptr<Handles>> idle;

  std::unique_ptr<Handles> borrow() {
    {
      std::lock_guard lock(mutex);
      if (!idle.empty()) {
        std::unique_ptr<Handles> handles = std::move(idle.back());
        idle.pop_back();
        return handles;
      }
    }
    auto handles = std::make_unique<Handles>();
    for (std::size_t i = 0; i < operands.size(); ++i) {
      (*handles)[i] = dnnl::memory(operands[i].second, dnnl_engine(), nullptr);
    }
    return handles;
  }

  void give_back(std::unique_ptr<Handles> handles) {
    std::lock_guard lock(mutex);
    idle.push_back(std::move(handles));
  }
};

SoloPrimitive::SoloPrimitive(dnnl::primitive primitive, std::vector<Operand> operands)
    : state_(std::make_shared<State>()) {
  ensure(operands.size() <= kMostOperands, "a primitive with ", operands.size(), " operands");
  state_->primitive = std::move(primitive);
  state_->operands = std::move(operands);
}

void SoloPrimitive::run(const void* const* data, std::size_t count) const {
  thread_local dnnl::stream stream(dnnl_engine());
  ensure(count == state_->operands.size(), "a primitive of ", state_->operands.size(), " operands got ", count);
  std::unique_ptr<State::Handles> handles = state_->borrow();
  std::array<dnnl_exec_arg_t, kMostOperands> arguments;
  for (std::size_t i = 0; i < count; ++i) {
    (*handles)[i].set_data_handle(const_cast<void*>(data[i]));  // NOLINT: oneDNN takes inputs as void*
    arguments[i] = {state_->operands[i].first, (*handles)[i].get()};
  }
  ThreadScope alone(1);
  dnnl_status_t status =
      dnnl_primitive_execute(state_->primitive.get(), stream.get(), static_cast<int>(count), arguments.data());
  ensure(status == dnnl_success, "oneDNN could not run a primitive: status ", static_cast<int>(status));
  state_->give_back(std::move(handles));
}

SoloPrimitive solo_reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  ThreadScope alone(1);
  const dnnl::engine& e = dnnl_engine();
  return {dnnl::reorder(dnnl::reorder::primitive_desc(e, from, e, to)), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
}

namespace {

/// Positions of an axis that lie together in one block of the layout; 0 when the layout is not one of blocks.
std::int64_t block_along(const dnnl::memory::desc& desc, std::size_t axis) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return 0;
  std::int64_t block = 1;
  dnnl::memory::dims sizes = desc.get_inner_blks();
  dnnl::memory::dims axes = desc.get_inner_idxs();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] == static_cast<std::int64_t>(axis)) block *= sizes[i];
  }
  return block;
}

}  // namespace

Relayout::Relayout(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  constexpr std::int64_t kWorthCutting = std::int64_t{1} << 15;
  constexpr std::int64_t kMostParts = 16;
  const dnnl::memory::dims none(from.get_dims().size(), 0);
  bool large = element_count(from.get_dims()) >= kWorthCutting;
  for (std::size_t axis = 0; axis < 2 && large && !reorder_; ++axis) {
    const std::int64_t from_block = block_along(from, axis);
    const std::int64_t to_block = block_along(to, axis);
    if (from_block == 0 || to_block == 0) break;
    dnnl::memory::dims dims = from.get_dims();
    const std::int64_t blocks = dims[axis] / std::max(from_block, to_block);
    std::int64_t parts = std::min(kMostParts, blocks);
    while (parts > 1 && (blocks % parts != 0 || dims[axis] % std::max(from_block, to_block) != 0)) --parts;
    if (parts <= 1) continue;
    dims[axis] /= parts;
    // oneDNN 3.2 does not always fill parts of a blocked layout that have gaps between them.
    dnnl::memory::desc part = to.submemory_desc(dims, none);
    if (part.get_size() * static_cast<std::size_t>(parts) != to.get_size()) continue;
    parts_ = parts;
    from_step_ = dims[axis] / from_block * from.get_strides()[axis];
    to_step_ = dims[axis] / to_block * to.get_strides()[axis];
    reorder_ = solo_reorder(from.submemory_desc(dims, none), part);
  }
  if (!reorder_) reorder_ = solo_reorder(from, to);
}

void Relayout::run(const void* from, void* to) const {
  parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      reorder_.run({static_cast<const float*>(from) + i * from_step_, static_cast<float*>(to) + i * to_step_});
    }
  });
}

}  // namespace backpass
