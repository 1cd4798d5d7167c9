// ConcatFromSequence: joins the tensors of a sequence along an old or a new
// axis.
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/sequences/sequence_rules.hpp"

namespace backpass {
namespace {

bool on_new_axis(const Node& node) {
  const std::int64_t flag = node.attr_int("new_axis", 0);
  if (flag != 0 && flag != 1) fail(node.label(), " attribute 'new_axis': got ", flag, ", expected 0 or 1");
  return flag == 1;
}

void infer(InferContext& c) {
  const Type& sequence = c.type(0);
  if (sequence.kind == Type::Kind::unknown) return;
  c.require(sequence.kind == Type::Kind::sequence && sequence.element->is_tensor(), "input: got ", shown(sequence),
            ", expected a sequence of tensors");
  const bool new_axis = on_new_axis(c.node);
  const std::int64_t axis_attribute = c.node.attr_int("axis");
  c.set_dtype(0, sequence.element->dtype);
  if (!sequence.element->shape) return;
  Shape shape = *sequence.element->shape;
  const std::size_t axis = c.axis(axis_attribute, shape.size() + (new_axis ? 1 : 0));
  if (new_axis) {
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis), c.data_dependent("length"));
  } else {
    shape[axis] = c.data_dependent("joined");
  }
  c.set_shape(0, std::move(shape));
}

void compute(ComputeContext& c) {
  std::vector<Tensor> parts;
  for (const RuntimeValue& item : c.sequence(0)) {
    c.require(item.is_tensor(), "sequence: expected one of tensors");
    parts.push_back(item.tensor);
  }
  c.require(!parts.empty(), "sequence: got an empty one, expected at least one tensor to join");
  const bool new_axis = on_new_axis(c.node);
  const std::size_t axis = c.axis(c.node.attr_int("axis"), parts[0].dims().size() + (new_axis ? 1 : 0));
  for (const Tensor& part : parts)
    c.require(part.rank() == parts[0].rank(), "ranks in the sequence: got ", part.rank(), " and ", parts[0].rank(),
              ", expected the same");
  c.outputs[0] = new_axis ? stacked(parts, axis) : joined(parts, axis);
}

const Register concat_from_sequence{{.name = "ConcatFromSequence",
                                     .since = 11,
                                     .doc = "Joins the tensors of a sequence along an old or a new axis.",
                                     .inputs = {1, 1},
                                     .types = {},
                                     .infer = infer,
                                     .compute = compute,
                                     .gradient = concat_from_sequence_gradient}};

}  // namespace
}  // namespace backpass
