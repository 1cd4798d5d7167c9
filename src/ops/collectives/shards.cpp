// NcclAllGather and NcclReduceScatter: all tensors of the node form one vector, of which every process owns a piece.
//
// Pieces are equal and a multiple of 32 elements long, as in ONNX Runtime, whose ZeRO optimizer cuts its tensors
// accordingly; the last one may reach beyond the end.
#include <cstring>
#include <vector>

#include "ops/collectives/world.hpp"

namespace backpass {
namespace {

using collectives::bytes_of;
using collectives::tensor_at;

constexpr std::int64_t kAlignment = 32;

/// The tensors of a node one after the other.
struct Shards {
  DType dtype;
  std::vector<std::int64_t> counts;

  std::int64_t piece(std::int64_t processes) const {
    std::int64_t total = 0;
    for (std::int64_t count : counts) total += count;
    return (total / (processes * kAlignment) + 1) * kAlignment;
  }

  std::size_t bytes(std::size_t i) const { return byte_size(dtype, counts[i]); }
};

Shards shards_of(const PrepareContext& c) {
  Shards shards{c.in(0).dtype, {}};
  for (const TensorInfo& t : c.inputs) shards.counts.push_back(t.size());
  return shards;
}

void copy_through(const Shards& shards, const KernelArgs& args) {
  for (std::size_t i = 0; i < shards.counts.size(); ++i) {
    if (args.outputs[i] != nullptr && shards.counts[i] > 0 && args.outputs[i] != args.inputs[i]) {
      std::memcpy(args.outputs[i], args.inputs[i], shards.bytes(i));
    }
  }
}

/// All tensors in one piece of memory, zeros behind them.
Tensor joined(const Shards& shards, const KernelArgs& args, std::int64_t count) {
  Tensor all(shards.dtype, {count});
  std::memset(all.mutable_data(), 0, all.bytes());
  auto* to = static_cast<std::byte*>(all.mutable_data());
  for (std::size_t i = 0; i < shards.counts.size(); ++i) {
    if (shards.counts[i] > 0) std::memcpy(to, args.inputs[i], shards.bytes(i));
    to += shards.bytes(i);
  }
  return all;
}

/// Elements [begin, end) of `all` to where they belong among the outputs.
void take_apart(const Shards& shards, const Tensor& all, std::int64_t begin, std::int64_t end, const KernelArgs& args) {
  const auto* from = static_cast<const std::byte*>(all.data());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < shards.counts.size(); ++i) {
    const std::int64_t low = std::max(begin, first);
    const std::int64_t high = std::min(end, first + shards.counts[i]);
    if (low < high && args.outputs[i] != nullptr) {
      std::memcpy(args.out<std::byte>(i) + byte_size(shards.dtype, low - first), from + byte_size(shards.dtype, low),
                  byte_size(shards.dtype, high - low));
    }
    first += shards.counts[i];
  }
}

Tensor piece_of(const Shards& shards, const Tensor& all, std::int64_t piece, int rank) {
  const auto* memory = static_cast<const std::byte*>(all.data());
  return tensor_at(shards.dtype, piece, memory + byte_size(shards.dtype, piece * rank));
}

Kernel prepare_gather(PrepareContext& c) {
  return [group_of = collectives::Group(c.node), shards = shards_of(c)](const KernelArgs& args) {
    const std::shared_ptr<Communicator> group = group_of.members();
    if (group == nullptr) return copy_through(shards, args);
    const std::int64_t piece = shards.piece(group->size());
    const Tensor mine = joined(shards, args, piece * group->size());
    const Tensor all(shards.dtype, mine.dims());
    group->allgather(bytes_of(piece_of(shards, mine, piece, group->rank())), bytes_of(all));
    take_apart(shards, all, 0, all.size(), args);
  };
}

/// Elements of other processes stay what they were here.
Kernel prepare_scatter(PrepareContext& c) {
  return [group_of = collectives::Group(c.node), shards = shards_of(c)](const KernelArgs& args) {
    const std::shared_ptr<Communicator> group = group_of.members();
    if (group == nullptr) return copy_through(shards, args);
    const std::int64_t piece = shards.piece(group->size());
    const Tensor all = joined(shards, args, piece * group->size());
    Tensor sum(shards.dtype, {piece});
    group->reduce_scatter(all, sum);
    copy_through(shards, args);
    std::memcpy(piece_of(shards, all, piece, group->rank()).mutable_data(), sum.data(), sum.bytes());
    take_apart(shards, all, piece * group->rank(), piece * (group->rank() + 1), args);
  };
}

OpDef sharded(std::string_view name, std::string_view doc, Kernel (*prepare)(PrepareContext&)) {
  OpDef def = collectives::collective(name, doc);
  def.prepare = prepare;
  return def;
}

const Register nccl_all_gather{sharded(
    "NcclAllGather", "All tensors as one vector, each piece of it from the process that owns it.", prepare_gather)};
const Register nccl_reduce_scatter{
    sharded("NcclReduceScatter", "All tensors as one vector, the piece that this process owns summed over processes.",
            prepare_scatter)};

}  // namespace
}  // namespace backpass
