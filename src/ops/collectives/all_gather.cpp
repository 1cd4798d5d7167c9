// AllGather: everybody's tensor along an axis. AllToAll: the part of everybody's tensor that is meant for this process.
#include <cstring>

#include "gradient/rule.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/collectives/exchange.hpp"
#include "ops/collectives/world.hpp"
#include "support/strides.hpp"

namespace backpass {
namespace {

using collectives::bytes_of;
using collectives::tensor_at;

constexpr int kTag = 0;
constexpr DTypeSet kTypes = types::floats | types::indices | types::boolean;

void infer_gather(InferContext& c) {
  collectives::infer_elementwise(c);
  const std::int64_t size = collectives::World(c.node).size();
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) {
    if (!c.knows_shape(i)) continue;
    Shape shape = c.shape(i);
    Dim& extent = shape[c.axis(c.node.attr_int("axis", 1), shape.size())];
    extent = extent * Dim(size);
    c.set_shape(i, std::move(shape));
  }
}

/// One input and its output.
struct Gathering {
  DType dtype;
  std::int64_t count;
  std::size_t scratch;  // where parts are received that do not lie one after the other
  bool is_direct;       // they do
  kernels::StridedCopy part;
  std::size_t step;  // from the place of one part to that of the next, in bytes
};

Gathering prepare_one(PrepareContext& c, std::size_t i, std::int64_t size) {
  const TensorInfo& in = c.in(i);
  const TensorInfo& out = c.out(i);
  const std::size_t axis = c.axis(c.node.attr_int("axis", 1), in.dims.size());
  std::int64_t outer = 1;
  for (std::size_t d = 0; d < axis; ++d) outer *= in.dims[d];
  const bool is_direct = outer == 1;
  const Dims to = strides_of(out.dims);
  return {in.dtype,
          in.size(),
          is_direct ? 0 : c.reserve(byte_size(out.dtype, in.size() * size)),
          is_direct,
          {in.dtype, in.dims, strides_of(in.dims), to},
          byte_size(in.dtype, in.dims[axis] * to[axis])};
}

void gather(const Gathering& g, Communicator& world, const void* in, std::byte* out, std::byte* scratch) {
  const std::int64_t size = world.size();
  std::byte* all = g.is_direct ? out : scratch + g.scratch;
  world.allgather(bytes_of(tensor_at(g.dtype, g.count, in)), bytes_of(tensor_at(g.dtype, g.count * size, all)));
  if (g.is_direct) return;
  const std::size_t bytes = byte_size(g.dtype, g.count);
  for (std::int64_t r = 0; r < size; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    g.part(all + rank * bytes, out + rank * g.step);
  }
}

Kernel prepare_gather(PrepareContext& c) {
  const std::int64_t size = collectives::World(c.node).size();
  std::vector<Gathering> parts;
  for (std::size_t i = 0; i < c.outputs.size(); ++i) parts.push_back(prepare_one(c, i, size));
  return [world_of = collectives::World(c.node), parts = std::move(parts)](const KernelArgs& args) {
    const std::shared_ptr<Communicator> world = world_of.members();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Gathering& g = parts[i];
      if (g.count == 0) continue;
      if (world == nullptr) {
        kernels::copy_elements(g.dtype, args.inputs[i], args.outputs[i], g.count);
      } else {
        gather(g, *world, args.inputs[i], args.out<std::byte>(i), args.scratch);
      }
    }
  };
}

void infer_to_all(InferContext& c) {
  collectives::infer_elementwise(c);
  const std::int64_t size = collectives::World(c.node).size();
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    if (!c.knows_shape(i)) continue;
    c.require(c.rank(i) > 0, "input ", i, ": got a scalar, expected at least one axis");
    const Dim& extent = c.shape(i)[0];
    c.require(!extent.is_known() || extent.value() % size == 0, "input ", i, ": got extent ", shown(extent),
              " of axis 0, expected a multiple of group_size ", size);
  }
}

void to_all(Communicator& world, DType dtype, std::int64_t count, const std::byte* in, std::byte* out) {
  const std::int64_t part = count / world.size();
  const std::size_t bytes = byte_size(dtype, part);
  collectives::for_each_partner(world, [&](int other) {
    const std::size_t at = static_cast<std::size_t>(other) * bytes;
    if (other == world.rank()) {
      std::memcpy(out + at, in + at, bytes);
    } else {
      collectives::exchange(world, other, bytes_of(tensor_at(dtype, part, in + at)),
                            bytes_of(tensor_at(dtype, part, out + at)), kTag);
    }
  });
}

Kernel prepare_to_all(PrepareContext& c) {
  const std::int64_t size = collectives::World(c.node).size();
  for (const TensorInfo& t : c.inputs) {
    c.require(t.dims.at(0) % size == 0, "axis 0: got ", t.dims[0], ", expected a multiple of group_size ", size);
  }
  return [world_of = collectives::World(c.node), tensors = c.outputs](const KernelArgs& args) {
    const std::shared_ptr<Communicator> world = world_of.members();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& t = tensors[i];
      if (!t.present || t.size() == 0) continue;
      if (world == nullptr) {
        kernels::copy_elements(t.dtype, args.inputs[i], args.outputs[i], t.size());
      } else {
        to_all(*world, t.dtype, t.size(), args.in<std::byte>(i), args.out<std::byte>(i));
      }
    }
  };
}

Value* all_to_all(GradientContext& g, Value* parts, std::int64_t size) {
  return g.op("AllToAll", {parts}, {{"group_size", size}}, "com.microsoft");
}

/// Everybody's gradient of the part that came from here, added up in the order of ranks.
void gather_gradient(GradientContext& g) {
  const std::int64_t size = collectives::World(g.node).size();
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) {
    const std::int64_t rank = g.rank(g.x(i));
    const std::int64_t named = g.node.attr_int("axis", 1);
    const std::int64_t axis = named < 0 ? named + rank : named;
    Value* shape = g.shape_of(g.x(i));
    Value* cut = g.concat({g.b.ops("Slice", {shape, g.b.ints({0}), g.b.ints({axis})}, 1)[0], g.b.ints({size}),
                           g.b.ops("Slice", {shape, g.b.ints({axis}), g.b.ints({rank})}, 1)[0]},
                          0);
    std::vector<std::int64_t> order = {axis};
    for (std::int64_t d = 0; d <= rank; ++d) {
      if (d != axis) order.push_back(d);
    }
    Value* by_rank = g.transpose(g.reshape_to(g.dy(i), cut), order);
    g.set(i, g.sum(all_to_all(g, by_rank, size), {0}, false));
  }
}

void to_all_gradient(GradientContext& g) {
  const std::int64_t size = collectives::World(g.node).size();
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) g.set(i, all_to_all(g, g.dy(i), size));
}

OpDef all_gather() {
  OpDef def = collectives::collective("AllGather", "The tensors of all group_size processes, joined along an axis.");
  def.types = kTypes;
  def.infer = infer_gather;
  def.prepare = prepare_gather;
  def.gradient = gather_gradient;
  return def;
}

OpDef to_all_definition() {
  OpDef def = collectives::collective(
      "AllToAll", "Of group_size parts along axis 0, part k goes to process k; theirs for this one, by rank.");
  def.types = kTypes;
  def.infer = infer_to_all;
  def.prepare = prepare_to_all;
  def.gradient = to_all_gradient;
  return def;
}

const Register kAllGather{all_gather()};
const Register kAllToAll{to_all_definition()};

}  // namespace
}  // namespace backpass
