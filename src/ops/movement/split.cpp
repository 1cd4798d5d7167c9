// Split and SplitTraining: consecutive pieces along an axis.
#include <algorithm>
#include <numeric>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

/// Pieces of equal size; when they do not come out even the last is smaller (and others may be empty).
std::vector<Dim> even_sizes(const Dim& extent, std::int64_t pieces) {
  const Dim size = ceil_div(extent, pieces);
  if (pieces == 2) return {size, floor_div(extent, 2)};
  std::vector<Dim> sizes;
  for (std::int64_t i = 0; i < pieces; ++i) sizes.push_back(max(min(size, extent - size * i), 0));
  return sizes;
}

std::vector<Dim> sizes(InferContext& c, const Dim& extent) {
  auto count = static_cast<std::int64_t>(c.node.outputs.size());
  if (!c.has_input(1)) {
    c.require(c.node.has_attribute("num_outputs"), "split and num_outputs: got none, expected one of them");
    std::int64_t pieces = c.node.attr_int("num_outputs", count);
    c.require(pieces == count && pieces > 0, "num_outputs: got ", pieces, " for a node with ", count, " outputs");
    return even_sizes(extent, pieces);
  }
  auto given = movement::index_list(c, 1, "split");
  if (!given) {
    std::vector<Dim> unknown;
    for (std::int64_t i = 0; i < count; ++i) unknown.push_back(c.data_dependent(concat("split", i)));
    return unknown;
  }
  c.require(given->size() == static_cast<std::size_t>(count), "split: got ", given->size(), " sizes for ", count,
            " outputs");
  for (const Dim& d : *given) {
    c.require(!d.is_known() || d.value() >= 0, "split: got size ", shown(d), ", expected none below 0");
  }
  Dim sum = 0;
  for (const Dim& d : *given) sum = sum + d;
  c.unify(extent, sum, "extent along the axis and the sum of split");
  return *given;
}

void infer(InferContext& c) {
  std::size_t count = c.node.outputs.size();
  for (std::size_t i = 0; i < count; ++i) c.set_dtype(i, c.dtype(0));
  const Shape& in = c.shape(0);
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), in.size());
  std::vector<Dim> pieces = sizes(c, in[axis]);
  for (std::size_t i = 0; i < count; ++i) {
    Shape out = in;
    out[axis] = pieces[i];
    c.set_shape(i, std::move(out));
  }
  auto values = movement::ints_of_rank(c, 0, 1);
  auto lengths = movement::numbers(pieces);
  if (!values || !lengths) return;
  if (std::accumulate(lengths->begin(), lengths->end(), std::int64_t{0}) != std::ssize(*values)) return;
  auto next = values->begin();
  for (std::size_t i = 0; i < count; ++i) {
    movement::set_ints(c, i, {next, next + (*lengths)[i]});
    next += (*lengths)[i];
  }
}

/// Sizes of all pieces, also of those nobody wants.
Dims known_sizes(const PrepareContext& c, std::size_t axis) {
  auto count = static_cast<std::int64_t>(c.outputs.size());
  if (!c.has_input(1)) return to_dims(even_sizes(c.in(0).dims[axis], count));
  if (c.in(1).constant != nullptr) return c.in(1).constant->to_ints();
  Dims all;
  for (const TensorInfo& out : c.outputs) {
    c.require(out.present, "an output is omitted: expected all of them when the sizes are computed at run time");
    all.push_back(out.dims[axis]);
  }
  return all;
}

struct Part {
  kernels::StridedCopy copy;
  std::size_t output;
  std::size_t offset;  ///< of its first element in the input, in bytes
};

Kernel prepare(PrepareContext& c) {
  const TensorInfo& in = c.in(0);
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), in.dims.size());
  Dims from = strides_of(in.dims);
  Dims lengths = known_sizes(c, axis);
  std::vector<Part> parts;
  std::int64_t position = 0;
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    Dims out = in.dims;
    out[axis] = lengths[i];
    if (c.outputs[i].present) {
      parts.push_back({{in.dtype, out, from, strides_of(out)}, i, byte_size(in.dtype, position * from[axis])});
    }
    position += lengths[i];
  }
  c.require(position == in.dims[axis], "split: sizes add up to ", position, ", expected the extent ", in.dims[axis]);
  return [parts = std::move(parts)](const KernelArgs& args) {
    for (const Part& p : parts) p.copy(args.in<std::byte>(0) + p.offset, args.outputs[p.output]);
  };
}

/// Pieces nobody uses count as zeros; of those that are omitted only the node itself knows the size.
void gradient(GradientContext& g) {
  const std::size_t count = g.node.outputs.size();
  std::vector<Value*> whole = g.node.outputs;
  if (std::count(whole.begin(), whole.end(), nullptr) > 0) {
    whole = g.b.ops(g.node.op, g.node.inputs, count, attributes_of(g.node), g.node.domain);
  }
  std::vector<Value*> parts;
  for (std::size_t i = 0; i < count; ++i) parts.push_back(g.has_dy(i) ? g.dy(i) : g.zeros_like(whole[i]));
  g.set(0, count == 1 ? parts[0] : g.concat(std::move(parts), g.node.attr_int("axis", 0)));
}

const Register split{{.name = "Split",
                      .since = 18,
                      .doc = "Consecutive pieces along `axis`: of the sizes given, or `num_outputs` equal ones.",
                      .inputs = {1, 2},
                      .outputs = {1, -1},
                      .types = types::movable,
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = gradient}};

const Register split_training{{.name = "SplitTraining",
                               .domain = "com.microsoft",
                               .doc = "Split whose sizes are always an input.",
                               .inputs = {2, 2},
                               .outputs = {1, -1},
                               .types = types::movable,
                               .infer = infer,
                               .prepare = prepare,
                               .gradient = gradient}};

void lift_13(Builder& b, Node& node) { movement::ints_attribute_to_input(b, node, "split", 1); }
const RegisterAdapter split_13{{.op = "Split", .below = 13, .lift = lift_13}};

/// Without sizes, the number of outputs tells the number of pieces, which had to be equal.
void lift_18(Builder& /*b*/, Node& node) {
  if (node.input(1) != nullptr) return;
  const std::int64_t pieces = std::ssize(node.outputs);
  node.attributes.emplace("num_outputs", pieces);
  const auto& shape = node.input(0)->type.shape;
  std::int64_t axis = node.attr_int("axis", 0);
  if (axis < 0 && shape) axis += std::ssize(*shape);
  if (!shape || axis < 0 || axis >= std::ssize(*shape) || pieces == 0) return;
  const Dim& extent = (*shape)[static_cast<std::size_t>(axis)];
  if (!extent.is_known() || extent.value() % pieces == 0) return;
  fail(node.label(), " extent along the axis: got ", extent.value(), ", expected a multiple of the ", pieces,
       " outputs; give the sizes in split, or use opset 18 or newer");
}
const RegisterAdapter split_18{{.op = "Split", .below = 18, .lift = lift_18}};

}  // namespace
}  // namespace backpass
