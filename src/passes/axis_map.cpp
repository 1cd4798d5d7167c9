#include "passes/axis_map.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "graph/op.hpp"

namespace backpass {
namespace {

using Found = std::optional<AxisMap>;

const Shape& shape_of(const Value* v) { return *v->type.shape; }
bool knows_shape(const Value* v) { return v != nullptr && v->type.is_tensor() && v->type.shape.has_value(); }

AxisMap only_input(const Node& node, std::size_t input, std::size_t axis) {
  AxisMap map(node.inputs.size());
  map[input] = axis;
  return map;
}

/// Inputs of some numbers broadcast to a result. False where an extent may be 1 or not.
bool add_broadcast(const Node& node, std::size_t input, const Shape& out, std::size_t axis, AxisMap& map) {
  const Shape& in = shape_of(node.inputs[input]);
  if (in.size() > out.size()) return false;
  const std::size_t missing = out.size() - in.size();
  if (axis < missing) return true;
  const Dim& extent = in[axis - missing];
  if (extent == out[axis]) {
    map[input] = axis - missing;
    return true;
  }
  return extent.is(1);
}

Found of_pointwise(const Node& node, std::size_t axis) {
  AxisMap map(node.inputs.size());
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == nullptr) continue;
    if (!add_broadcast(node, i, shape_of(node.output(0)), axis, map)) return std::nullopt;
  }
  return map;
}

/// Along `axis` of the node everything depends on everything.
Found of_mixing(const Node& node, std::size_t axis, std::int64_t mixed) {
  const std::size_t rank = shape_of(node.input(0)).size();
  if (from_front(mixed, rank) == axis) return std::nullopt;
  return only_input(node, 0, axis);
}

Found of_softmax(const Node& node, std::size_t axis) { return of_mixing(node, axis, node.attr_int("axis", -1)); }

Found of_running(const Node& node, std::size_t axis) {
  const auto along = numbers_in(node.input(1));
  return along && along->size() == 1 ? of_mixing(node, axis, along->front()) : std::nullopt;
}

Found of_layer_norm(const Node& node, std::size_t axis) {
  const std::size_t rank = shape_of(node.input(0)).size();
  if (axis >= from_front(node.attr_int("axis", -1), rank)) return std::nullopt;
  return of_pointwise(node, axis);
}

Found of_reduction(const Node& node, std::size_t axis) {
  const std::size_t rank = shape_of(node.input(0)).size();
  const auto axes = node.input(1) != nullptr ? numbers_in(node.input(1)) : std::nullopt;
  if (!axes || axes->empty()) return std::nullopt;
  std::vector<bool> is_reduced(rank, false);
  for (std::int64_t a : *axes) is_reduced[from_front(a, rank)] = true;
  std::size_t in = axis;
  if (node.attr_int("keepdims", 1) == 0) {
    in = 0;
    for (std::size_t left = axis; in < rank; ++in) {
      if (!is_reduced[in] && left-- == 0) break;
    }
  }
  return in < rank && !is_reduced[in] ? Found(only_input(node, 0, in)) : std::nullopt;
}

Found of_transpose(const Node& node, std::size_t axis) {
  const std::size_t rank = shape_of(node.input(0)).size();
  const std::vector<std::int64_t> perm = node.attr_ints("perm");
  return only_input(node, 0, perm.empty() ? rank - 1 - axis : static_cast<std::size_t>(perm[axis]));
}

/// Flatten makes one axis of those in front of its own, and one of the others, whatever their extents are.
bool is_on_same_side(const Node& node, std::size_t in, std::size_t out) {
  if (node.op != "Flatten") return true;
  return (in >= from_front(node.attr_int("axis", 1), shape_of(node.input(0)).size())) == (out == 1);
}

/// The axis of the input that lies between as many elements, and is as long.
Found of_reshape(const Node& node, std::size_t axis) {
  const Shape& in = shape_of(node.input(0));
  const Shape& out = shape_of(node.output(0));
  auto before = [](const Shape& s, std::size_t i) { return product(std::span(s).first(i)); };
  auto behind = [](const Shape& s, std::size_t i) { return product(std::span(s).subspan(i + 1)); };
  try {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (is_on_same_side(node, i, axis) && in[i] == out[axis] && before(in, i) == before(out, axis) &&
          behind(in, i) == behind(out, axis)) {
        return only_input(node, 0, i);
      }
    }
  } catch (const DimOverflow&) {
  }
  return std::nullopt;
}

Found of_squeeze(const Node& node, std::size_t axis) {
  const bool removes = node.op == "Squeeze";
  const Shape& longer = shape_of(removes ? node.input(0) : node.output(0));
  const auto axes = node.input(1) != nullptr ? numbers_in(node.input(1)) : std::nullopt;
  if (!axes) return std::nullopt;
  std::vector<bool> is_one(longer.size(), false);
  for (std::int64_t a : *axes) is_one[from_front(a, longer.size())] = true;
  if (!removes) {
    if (is_one[axis]) return std::nullopt;
    return only_input(node, 0,
                      axis - static_cast<std::size_t>(std::count(is_one.begin(), is_one.begin() + axis, true)));
  }
  for (std::size_t i = 0; i < longer.size(); ++i) {
    if (!is_one[i] && axis-- == 0) return only_input(node, 0, i);
  }
  return std::nullopt;
}

Found of_expand(const Node& node, std::size_t axis) {
  AxisMap map(node.inputs.size());
  if (!add_broadcast(node, 0, shape_of(node.output(0)), axis, map)) return std::nullopt;
  return map;
}

/// Rows are known by their places, and may be left out.
Found of_row_dropout(const Node& node, std::size_t axis) {
  if (node.input(3) == nullptr) return std::nullopt;
  const Shape& x = shape_of(node.input(0));
  const Shape& rows = shape_of(node.input(3));
  const bool fits = axis < rows.size() && rows.size() <= x.size() && std::equal(rows.begin(), rows.end(), x.begin());
  if (!fits) return std::nullopt;
  AxisMap map = only_input(node, 0, axis);
  map[3] = axis;
  return map;
}

Found of_matmul(const Node& node, std::size_t axis) {
  const Shape& a = shape_of(node.input(0));
  const Shape& b = shape_of(node.input(1));
  const std::size_t rank = shape_of(node.output(0)).size();
  const std::size_t columns = b.size() > 1 ? 1 : 0;
  const std::size_t rows = a.size() > 1 ? 1 : 0;
  if (columns == 1 && axis + 1 == rank) return only_input(node, 1, b.size() - 1);
  if (rows == 1 && axis + columns + 1 == rank) return only_input(node, 0, a.size() - 2);
  AxisMap map(node.inputs.size());
  const std::size_t from_end = rank - columns - rows - axis;  // counted back from the last axis of the batch
  auto add = [&](std::size_t i, const Shape& s) {
    if (s.size() < 2 + from_end) return true;
    const std::size_t at = s.size() - 2 - from_end;
    if (s[at] == shape_of(node.output(0))[axis]) map[i] = at;
    return map[i].has_value() || s[at].is(1);
  };
  return add(0, a) && add(1, b) ? Found(map) : std::nullopt;
}

Found of_gemm(const Node& node, std::size_t axis) {
  const bool is_turned = node.attr_int(axis == 0 ? "transA" : "transB", 0) != 0;
  AxisMap map = only_input(node, axis, (axis == 0) == is_turned ? 1 : 0);
  const bool fits = node.input(2) == nullptr || add_broadcast(node, 2, shape_of(node.output(0)), axis, map);
  return fits ? Found(map) : std::nullopt;
}

Found of_concat(const Node& node, std::size_t axis) {
  if (from_front(node.attr_int("axis"), shape_of(node.input(0)).size()) == axis) return std::nullopt;
  return AxisMap(node.inputs.size(), axis);
}

Found of_split(const Node& node, std::size_t axis) { return of_mixing(node, axis, node.attr_int("axis", 0)); }

Found of_slice(const Node& node, std::size_t axis) {
  const std::size_t rank = shape_of(node.input(0)).size();
  std::vector<std::int64_t> sliced;
  if (node.input(3) != nullptr) {
    const auto axes = numbers_in(node.input(3));
    if (!axes) return std::nullopt;
    sliced = *axes;
  } else {
    const Shape& starts = shape_of(node.input(1));
    if (starts.size() != 1 || !starts[0].is_known()) return std::nullopt;
    for (std::int64_t i = 0; i < starts[0].value(); ++i) sliced.push_back(i);
  }
  const bool is_sliced =
      std::any_of(sliced.begin(), sliced.end(), [&](std::int64_t a) { return from_front(a, rank) == axis; });
  return is_sliced ? std::nullopt : Found(only_input(node, 0, axis));
}

Found of_gather(const Node& node, std::size_t axis) {
  const std::size_t along = from_front(node.attr_int("axis", 0), shape_of(node.input(0)).size());
  const std::size_t places = shape_of(node.input(1)).size();
  if (axis < along) return only_input(node, 0, axis);
  if (axis < along + places) return only_input(node, 1, axis - along);
  return only_input(node, 0, axis + 1 - places);
}

/// Images of a batch, and channels where each is for itself.
Found of_images(const Node& node, std::size_t axis) {
  const std::size_t apart = node.op == "Conv" ? 1 : 2;
  return axis < apart ? Found(only_input(node, 0, axis)) : std::nullopt;
}

struct Rule {
  std::string_view op;
  Found (*map)(const Node&, std::size_t axis);
};

constexpr Rule kRules[] = {
    {"Identity", of_pointwise},
    {"Dropout", of_expand},
    {"Softmax", of_softmax},
    {"LogSoftmax", of_softmax},
    {"Hardmax", of_softmax},
    {"LpNormalization", of_softmax},
    {"CumSum", of_running},
    {"LayerNormalization", of_layer_norm},
    {"RMSNormalization", of_layer_norm},
    {"SimplifiedLayerNormalization", of_layer_norm},
    {"Transpose", of_transpose},
    {"Reshape", of_reshape},
    {"Flatten", of_reshape},
    {"Squeeze", of_squeeze},
    {"Unsqueeze", of_squeeze},
    {"Expand", of_expand},
    {"MatMul", of_matmul},
    {"Gemm", of_gemm},
    {"Concat", of_concat},
    {"Split", of_split},
    {"Slice", of_slice},
    {"Gather", of_gather},
    {"Conv", of_images},
    {"MaxPool", of_images},
    {"AveragePool", of_images},
    {"GlobalAveragePool", of_images},
    {"GlobalMaxPool", of_images},
};

Found (*rule_for(const Node& node))(const Node&, std::size_t) {
  if (node.def->tile != nullptr) return of_pointwise;
  if (is_op(&node, "RowDropout", "backpass")) return of_row_dropout;
  const bool is_contrib = node.domain == "com.microsoft" && node.op.ends_with("LayerNormalization");
  if (!node.domain.empty() && !is_contrib) return nullptr;
  if (node.op.starts_with("Reduce")) return of_reduction;
  const auto* found =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& r) { return r.op == node.op; });
  return found == std::end(kRules) ? nullptr : found->map;
}

}  // namespace

std::optional<std::vector<std::int64_t>> numbers_in(const Value* v) {
  if (v == nullptr) return std::nullopt;
  if (v->constant) return v->constant->to_ints();
  if (!v->ints) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Dim& d : *v->ints) {
    if (!d.is_known()) return std::nullopt;
    numbers.push_back(d.value());
  }
  return numbers;
}

std::optional<AxisMap> axis_map(const Node& node, std::size_t axis) {
  if (node.def == nullptr || !node.subgraphs.empty() || node.inputs.empty()) return std::nullopt;
  const auto rule = rule_for(node);
  if (rule == nullptr || !knows_shape(node.output(0)) || axis >= shape_of(node.output(0)).size()) return std::nullopt;
  const bool knows_inputs = std::all_of(node.inputs.begin(), node.inputs.end(),
                                        [](const Value* v) { return v == nullptr || knows_shape(v); });
  if (!knows_inputs || node.input(0) == nullptr) return std::nullopt;
  return rule(node, axis);
}

}  // namespace backpass
