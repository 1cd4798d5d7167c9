#include "gradient/rule.hpp"

#include "gradient/containers.hpp"
#include "support/printable.hpp"

namespace backpass {

GradientContext::GradientContext(Builder& builder, const Node& n, std::vector<Value*> output_gradients,
                                 const std::set<const Value*>& active)
    : b(builder),
      node(n),
      output_gradients_(std::move(output_gradients)),
      active_(active),
      answered_(n.inputs.size(), false) {}

Value* GradientContext::x(std::size_t i) const {
  ensure(has_input(i), shown(node), " gradient reads input ", i, ", which is omitted");
  return node.inputs[i];
}

Value* GradientContext::y(std::size_t k) const {
  ensure(node.output(k) != nullptr, shown(node), " gradient reads output ", k, ", which is omitted");
  return node.outputs[k];
}

bool GradientContext::has_dy(std::size_t k) const {
  return k < output_gradients_.size() && output_gradients_[k] != nullptr;
}

Value* GradientContext::dy(std::size_t k) {
  if (!has_dy(k)) output_gradients_.at(k) = zeros_like(y(k));
  return output_gradients_[k];
}

void GradientContext::set(std::size_t i, Value* gradient) {
  ensure(has_input(i) && !answered_[i], shown(node), " gradient of input ", i, " set twice or for nothing");
  answered_[i] = true;
  if (wants(i)) results_.emplace_back(node.inputs[i], gradient);
}

void GradientContext::set_reduced(std::size_t i, Value* gradient) {
  if (wants(i)) {
    set(i, reduce_like(gradient, x(i)));
  } else {
    set(i, gradient);
  }
}

void GradientContext::set_zero(std::size_t i) {
  if (has_input(i)) set(i, nullptr);
}

void GradientContext::set_captured(Value* outer, Value* gradient) {
  if (wants(outer)) results_.emplace_back(outer, gradient);
}

void GradientContext::check_complete() const {
  for (std::size_t i = 0; i < answered_.size(); ++i) {
    ensure(answered_[i] || !wants(i), shown(node), " gradient rule says nothing of input ", i);
  }
}

Value* GradientContext::op(std::string_view name, std::vector<Value*> inputs, const AttributeList& attributes,
                           std::string_view domain) {
  return b.op(name, std::move(inputs), attributes, domain);
}

Value* GradientContext::number(double value, const Value* like) {
  if (like != nullptr) return b.scalar(value, like);
  for (const Value* v : output_gradients_) {
    if (v != nullptr) return b.scalar(value, v);
  }
  return b.scalar(value, y());
}

Value* GradientContext::cast(Value* a, DType to) {
  if (a->type.dtype == to) return a;
  return op("Cast", {a}, {{"to", static_cast<std::int64_t>(to)}});
}

Value* GradientContext::transpose(Value* a, std::vector<std::int64_t> perm) {
  return op("Transpose", {a}, {{"perm", std::move(perm)}});
}

Value* GradientContext::concat(std::vector<Value*> parts, std::int64_t axis) {
  return op("Concat", std::move(parts), {{"axis", axis}});
}

Value* GradientContext::gather(Value* data, Value* indices, std::int64_t axis) {
  return op("Gather", {data, indices}, {{"axis", axis}});
}

Value* GradientContext::sum(Value* a, std::vector<std::int64_t> axes, bool keepdims) {
  if (axes.empty()) return a;
  return op("ReduceSum", {a, b.ints(std::move(axes))}, {{"keepdims", std::int64_t{keepdims}}});
}

Value* GradientContext::squeeze(Value* a, std::vector<std::int64_t> axes) {
  return axes.empty() ? a : op("Squeeze", {a, b.ints(std::move(axes))});
}

Value* GradientContext::unsqueeze(Value* a, std::vector<std::int64_t> axes) {
  return axes.empty() ? a : op("Unsqueeze", {a, b.ints(std::move(axes))});
}

Value* GradientContext::reshape(Value* a, std::vector<std::int64_t> shape) {
  return op("Reshape", {a, b.ints(std::move(shape))});
}

Value* GradientContext::reshape_to(Value* a, Value* shape) {
  return op("Reshape", {a, shape}, {{"allowzero", std::int64_t{1}}});
}

Value* GradientContext::slice(Value* a, std::int64_t start, std::int64_t end, std::int64_t axis) {
  return op("Slice", {a, b.ints({start}), b.ints({end}), b.ints({axis})});
}

std::optional<Dims> GradientContext::known_dims(const Value* a) const {
  if (!a->type.shape || !is_known(*a->type.shape)) return std::nullopt;
  return to_dims(*a->type.shape);
}

std::int64_t GradientContext::rank(const Value* a) const {
  if (!a->type.shape) {
    fail<Unsupported>(node.label(), " gradient: got ", printable(a->name),
                      " of unknown rank, expected a known one; declare the shapes of the model's inputs");
  }
  return static_cast<std::int64_t>(a->type.shape->size());
}

Value* GradientContext::shape_of(Value* a) {
  if (auto dims = known_dims(a)) return b.ints(*std::move(dims));
  return op("Shape", {a});
}

Value* GradientContext::extent(Value* a, std::int64_t i) {
  if (a->type.shape) {
    auto at = static_cast<std::size_t>(i < 0 ? i + rank(a) : i);
    const Dim& d = a->type.shape->at(at);
    if (d.is_known()) return b.integer(d.value());
  }
  return gather(op("Shape", {a}), b.integer(i), 0);
}

Value* GradientContext::size_of(Value* a) {
  if (auto dims = known_dims(a)) return b.integer(element_count(*dims));
  return op("Size", {a});
}

Value* GradientContext::zeros_like(Value* a) { return filled_like(b, a, 0); }

Value* GradientContext::reshape_like(Value* a, Value* like) {
  if (a->type.shape && like->type.shape && *a->type.shape == *like->type.shape) return a;
  return reshape_to(a, shape_of(like));
}

Value* GradientContext::expand_like(Value* a, Value* like) {
  if (a->type.shape && like->type.shape && *a->type.shape == *like->type.shape) return a;
  return op("Expand", {a, shape_of(like)});
}

namespace {

/// Axes of `from` along which `to` was repeated; nullopt when only run time can tell.
std::optional<std::vector<std::int64_t>> repeated_axes(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> axes;
  const std::size_t extra = from.size() - to.size();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (i < extra) {
      axes.push_back(static_cast<std::int64_t>(i));
      continue;
    }
    const Dim& d = to[i - extra];
    if (d == from[i]) continue;
    if (!d.is_known()) return std::nullopt;
    if (d.is(1)) axes.push_back(static_cast<std::int64_t>(i));
  }
  return axes;
}

}  // namespace

Value* GradientContext::reduce_like(Value* a, Value* like) {
  const bool knows_ranks = a->type.shape && like->type.shape;
  std::vector<std::int64_t> leading;
  if (knows_ranks) {
    const std::int64_t extra = rank(a) - rank(like);
    ensure(extra >= 0, shown(node), " gradient: cannot sum ", shown(a->type), " to ", shown(like->type));
    for (std::int64_t i = 0; i < extra; ++i) leading.push_back(i);
    if (auto axes = repeated_axes(*a->type.shape, *like->type.shape)) {
      return squeeze(sum(a, *std::move(axes), true), std::move(leading));
    }
  }
  Value* shape = shape_of(like);
  Value* padded = shape;
  if (!knows_ranks) {
    Value* extra = sub(op("Shape", {op("Shape", {a})}), op("Shape", {shape}));
    padded = concat({op("Expand", {b.ints({1}), extra}), shape}, 0);
  } else if (!leading.empty()) {
    padded = concat({b.ints(std::vector<std::int64_t>(leading.size(), 1)), shape}, 0);
  }
  Value* axes = squeeze(op("NonZero", {equal(padded, b.integer(1))}), {0});
  Value* summed =
      op("ReduceSum", {a, axes}, {{"keepdims", std::int64_t{1}}, {"noop_with_empty_axes", std::int64_t{1}}});
  return reshape_to(summed, shape);
}

}  // namespace backpass
