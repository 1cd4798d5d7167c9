// Sums over processes: NcclAllReduce, AllReduce, and the pair that Megatron's tensor parallelism puts around a layer.
#include "gradient/rule.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/collectives/world.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

using collectives::collective;

constexpr std::int64_t kHorizontal = 4;

Kernel prepare(PrepareContext& c) {
  return [group_of = collectives::Group(c.node), tensors = c.outputs](const KernelArgs& args) {
    const std::shared_ptr<Communicator> group = group_of.members();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& t = tensors[i];
      if (!t.present) continue;
      if (args.inputs[i] != args.outputs[i]) kernels::copy_elements(t.dtype, args.inputs[i], args.outputs[i], t.size());
      if (group != nullptr && t.size() > 0) {
        group->start_allreduce(collectives::tensor_at(t.dtype, t.size(), args.outputs[i]));
      }
    }
    if (group != nullptr) group->wait();
  };
}

/// Each process' loss depends on what all others put in: the derivative of a sum is the sum of derivatives.
void gradient(GradientContext& g) {
  std::vector<Value*> reads;
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) reads.push_back(g.dy(i));
  const std::size_t count = reads.size();
  AttributeList attributes;
  if (g.node.has_attribute("group_type")) attributes.emplace_back("group_type", g.node.attr_int("group_type", 0));
  const std::vector<Value*> sums = g.b.ops(g.node.op, std::move(reads), count, attributes, "com.microsoft");
  for (std::size_t i = 0; i < count; ++i) g.set(i, sums[i]);
}

void megatron_f_gradient(GradientContext& g) {
  g.set(0, g.op("NcclAllReduce", {g.dy()}, {{"group_type", kHorizontal}}, "com.microsoft"));
}

void megatron_g_gradient(GradientContext& g) { g.set(0, g.dy()); }

OpDef sum(std::string_view name, std::string_view doc) {
  OpDef def = collective(name, doc);
  def.prepare = prepare;
  def.gradient = gradient;
  def.in_place_input = 0;
  return def;
}

OpDef megatron_g() {
  OpDef def = sum("MegatronG", "The sum over a group of processes, whose gradient is passed on as it is.");
  def.inputs = def.outputs = {1, 1};
  def.gradient = megatron_g_gradient;
  return def;
}

const Register nccl_all_reduce{sum("NcclAllReduce", "Each tensor's sum over the processes of group_type.")};
const Register all_reduce{sum("AllReduce", "Each tensor's sum over all processes.")};
const Register kMegatronG{megatron_g()};
const Register megatron_f{{.name = "MegatronF",
                           .domain = "com.microsoft",
                           .doc = "The value itself, whose gradient is summed over horizontally parallel processes.",
                           .types = types::floats,
                           .infer = rules::same_as_input,
                           .prepare = movement::prepare_copy,
                           .gradient = megatron_f_gradient,
                           .is_view = true}};

}  // namespace
}  // namespace backpass
