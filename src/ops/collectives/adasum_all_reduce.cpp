// AdasumAllReduce: what processes found, combined by Adasum.
#include "kernels/strided_copy.hpp"
#include "ops/collectives/adasum.hpp"
#include "ops/collectives/world.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kHierarchical = 2;

void infer(InferContext& c) {
  collectives::infer_elementwise(c);
  const std::int64_t algorithm = c.node.attr_int("reduce_algo", 0);
  c.require(algorithm >= 0 && algorithm <= kHierarchical, "reduce_algo: got ", algorithm, ", expected 0, 1 or 2");
}

Kernel prepare(PrepareContext& c) {
  const bool is_hierarchical = c.node.attr_int("reduce_algo", 0) == kHierarchical;
  return [is_hierarchical, label = c.node.label(), group_of = collectives::Group(c.node),
          tensors = c.outputs](const KernelArgs& args) {
    const std::shared_ptr<Communicator> group = group_of.members();
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& t = tensors[i];
      if (!t.present) continue;
      if (args.inputs[i] != args.outputs[i]) kernels::copy_elements(t.dtype, args.inputs[i], args.outputs[i], t.size());
      values.push_back(collectives::tensor_at(t.dtype, t.size(), args.outputs[i]));
    }
    if (group == nullptr) return;
    if (is_hierarchical) {  // machines are not known here
      fail<Unsupported>(label, " reduce_algo: got 2, which adds up within a machine first; set it to 1");
    }
    adasum(*group, values);
  };
}

OpDef definition() {
  OpDef def = collectives::collective("AdasumAllReduce",
                                      "Each tensor combined over processes: what they agree on counts once.");
  def.infer = infer;
  def.prepare = prepare;
  def.half_through_float = true;
  def.in_place_input = 0;
  return def;
}

const Register adasum_all_reduce{definition()};

}  // namespace
}  // namespace backpass
