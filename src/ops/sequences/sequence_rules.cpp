// The gradient of a sequence is a sequence of the gradients of its elements (gradient/containers.hpp): what puts an
// element in takes its gradient out, and the other way round.
#include "ops/sequences/sequence_rules.hpp"

#include "gradient/containers.hpp"

namespace backpass {
namespace {

/// A position counted from the start: negative ones count from the end of `sequence`.
Value* from_start(GradientContext& g, Value* position, Value* sequence) {
  Value* at = g.reshape(g.cast(position, DType::int64), {});
  if (at->constant && at->constant->to_ints()[0] >= 0) return at;
  Value* length = g.op("SequenceLength", {sequence});
  return g.where(g.less(at, g.b.integer(0)), g.add(at, length), at);
}

/// Extents of the elements of a sequence along an axis, 1-D.
Value* extents_along(GradientContext& g, Value* sequence, std::int64_t axis) {
  Value* each = mapped(g.b, {sequence}, [&](Builder& b, const auto& element) {
    return b.op("Gather", {b.op("Shape", {element[0]}), b.ints({axis})});
  });
  return g.op("ConcatFromSequence", {each}, {{"axis", std::int64_t{0}}});
}

}  // namespace

void sequence_construct_gradient(GradientContext& g) {
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) {
    if (g.wants(i)) g.set(i, g.op("SequenceAt", {g.dy(), g.b.integer(static_cast<std::int64_t>(i))}));
  }
}

/// Inputs sequence, tensor and, unless it goes to the end, the position in the sequence before.
void sequence_insert_gradient(GradientContext& g) {
  Value* at = g.has_input(2) ? from_start(g, g.x(2), g.x(0)) : nullptr;
  if (g.wants(g.x(0))) g.set(0, g.op("SequenceErase", at == nullptr ? std::vector{g.dy()} : std::vector{g.dy(), at}));
  if (g.wants(1)) g.set(1, g.op("SequenceAt", {g.dy(), at == nullptr ? g.b.integer(-1) : at}));
}

void sequence_erase_gradient(GradientContext& g) {
  Value* at = g.has_input(1) ? from_start(g, g.x(1), g.x(0)) : nullptr;
  Value* gone = g.op("SequenceAt", {g.x(0), at == nullptr ? g.b.integer(-1) : at});
  std::vector<Value*> inputs{g.dy(), g.zeros_like(gone)};
  if (at != nullptr) inputs.push_back(at);
  g.set(0, g.op("SequenceInsert", std::move(inputs)));
}

void sequence_at_gradient(GradientContext& g) {
  Value* at = from_start(g, g.x(1), g.x(0));
  Value* others = g.op("SequenceErase", {g.zeros_like(g.x(0)), at});
  g.set(0, g.op("SequenceInsert", {others, g.dy(), at}));
}

/// The parts joined again. There may be none, which cannot be joined: then a part of zeros is joined and cut off.
void split_to_sequence_gradient(GradientContext& g) {
  const bool is_stack = !g.has_input(1) && g.node.attr_int("keepdims", 1) == 0;
  const std::int64_t rank = g.rank(g.x());
  std::int64_t axis = g.node.attr_int("axis", 0);
  axis = axis < 0 ? axis + rank : axis;
  const AttributeList joining{{"axis", axis}, {"new_axis", std::int64_t{is_stack}}};
  const Dim& extent = g.x()->type.shape->at(static_cast<std::size_t>(axis));
  if (extent.is_known() && extent.value() > 0) {
    return g.set(0, g.reshape_like(g.op("ConcatFromSequence", {g.dy()}, joining), g.x()));
  }
  Value* shape = g.shape_of(g.x());
  Value* before = g.slice(shape, 0, axis, 0);
  Value* after = g.slice(shape, axis + 1, rank, 0);
  Value* part = is_stack ? g.concat({before, after}, 0) : g.concat({before, g.b.ints({1}), after}, 0);
  Value* more = g.op("SequenceInsert", {g.dy(), g.op("Expand", {g.zero(g.x()), part})});
  Value* joined = g.slice(g.op("ConcatFromSequence", {more}, joining), 0, -1, axis);
  g.set(0, g.reshape_like(joined, g.x()));
}

void concat_from_sequence_gradient(GradientContext& g) {
  const std::int64_t axis = g.node.attr_int("axis");
  if (g.node.attr_int("new_axis", 0) != 0) {
    return g.set(0, g.op("SplitToSequence", {g.dy()}, {{"axis", axis}, {"keepdims", std::int64_t{0}}}));
  }
  g.set(0, g.op("SplitToSequence", {g.dy(), extents_along(g, g.x(), axis)}, {{"axis", axis}}));
}

}  // namespace backpass
