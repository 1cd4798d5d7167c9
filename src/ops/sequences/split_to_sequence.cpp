// SplitToSequence: cuts a tensor into a sequence of parts along an axis.
#include <numeric>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/movement/movement.hpp"
#include "ops/sequences/sequence_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  const DType dtype = c.dtype(0);
  c.set_type(0, Type::sequence(Type::tensor(dtype)));
  Shape shape = c.shape(0);
  const std::size_t axis = c.axis(c.node.attr_int("axis", 0), shape.size());
  if (!c.has_input(1)) {
    if (c.node.attr_int("keepdims", 1) != 0) {
      shape[axis] = 1;
    } else {
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
    }
  } else if (auto sizes = movement::index_list(c, 1, "split");
             sizes && sizes->size() == 1 && c.knows_shape(1) && c.rank(1) == 1) {
    shape[axis] = sizes->front();
  } else {
    shape[axis] = c.data_dependent("part");
  }
  c.set_type(0, Type::sequence(Type::tensor(dtype, std::move(shape))));
}

// Extents of the parts along the axis.
std::vector<std::int64_t> part_sizes(const ComputeContext& c, std::int64_t extent) {
  std::vector<std::int64_t> sizes = c.has_input(1) ? c.tensor(1).to_ints() : std::vector<std::int64_t>{1};
  if (c.has_input(1) && c.tensor(1).rank() == 1) {
    std::int64_t sum = 0;
    for (std::int64_t size : sizes) {
      c.require(size >= 0 && size <= extent - sum, "split: got ", shown(sizes), ", expected sizes that add up to ",
                extent);
      sum += size;
    }
    c.require(sum == extent, "split: got sizes that add up to ", sum, ", expected ", extent);
    return sizes;
  }
  c.require(sizes.size() == 1 && sizes[0] > 0, "split: expected one positive number or a list of sizes");
  std::vector<std::int64_t> parts;
  for (std::int64_t begin = 0; begin < extent; begin += parts.back())
    parts.push_back(std::min(sizes[0], extent - begin));
  return parts;
}

void compute(ComputeContext& c) {
  const Tensor& input = c.tensor(0);
  const std::size_t axis = c.axis(c.node.attr_int("axis", 0), input.dims().size());
  const bool drop = !c.has_input(1) && c.node.attr_int("keepdims", 1) == 0;
  std::vector<RuntimeValue> items;
  std::int64_t begin = 0;
  for (std::int64_t size : part_sizes(c, input.dims()[axis])) {
    items.emplace_back(drop ? pick(input, axis, begin) : take(input, axis, begin, size));
    begin += size;
  }
  c.outputs[0] = RuntimeValue::sequence(std::move(items));
}

const Register split_to_sequence{{.name = "SplitToSequence",
                                  .since = 24,
                                  .doc = "Cuts a tensor into a sequence of parts along an axis.",
                                  .inputs = {1, 2},
                                  .types = types::movable,
                                  .infer = infer,
                                  .compute = compute,
                                  .gradient = split_to_sequence_gradient}};

}  // namespace
}  // namespace backpass
