#include "graph/op.hpp"
#include "passes/list.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;

/// Bits of the largest whole numbers that are all exact, and of exponents.
struct Precision {
  int digits;
  int exponents;
};

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {11, 5};
    case DType::bfloat16:
      return {8, 8};
    case DType::float32:
      return {24, 8};
    default:
      return {53, 11};  // float64
  }
}

bool is_signed(DType dtype) { return types::signed_integers.has(dtype); }
int bits_of(DType dtype) { return dtype == DType::boolean ? 1 : static_cast<int>(byte_size(dtype, 8)); }
bool is_whole(DType dtype) { return dtype == DType::boolean || types::integers.has(dtype); }

/// Whether each value of the first type is one of the second.
bool widens(DType from, DType to) {
  if (types::floats.has(from)) {
    if (!types::floats.has(to)) return false;
    const Precision a = precision_of(from), b = precision_of(to);
    return a.digits <= b.digits && a.exponents <= b.exponents;
  }
  if (!is_whole(from)) return false;
  if (types::floats.has(to)) return bits_of(from) <= precision_of(to).digits;
  if (!types::integers.has(to)) return false;
  return bits_of(from) + (is_signed(to) && !is_signed(from) ? 1 : 0) <= bits_of(to) &&
         (is_signed(to) || !is_signed(from));
}

/// Whether a Cast gives the same from the narrow type as from the wide one that holds the same values. Whole numbers
/// wrap around where they do not fit, floats do not.
bool is_same_from(DType narrow, DType wide, DType to) {
  if (is_whole(narrow) == is_whole(wide)) return true;
  return types::floats.has(to) || to == narrow || widens(narrow, to);
}

bool is_known_type(DType dtype) { return is_whole(dtype) || types::floats.has(dtype); }

/// What a Cast reads through another one that changes no value; null where there is none.
Value* source_of(const Node* node) {
  const Node* first = is_op(node, "Cast") ? node->input(0)->producer : nullptr;
  if (!is_op(first, "Cast")) return nullptr;
  const DType narrow = first->input(0)->type.dtype;
  const DType wide = node->input(0)->type.dtype;
  const DType to = node->output(0)->type.dtype;
  const bool merges =
      is_known_type(wide) && is_known_type(to) && widens(narrow, wide) && is_same_from(narrow, wide, to);
  return merges ? first->input(0) : nullptr;
}

}  // namespace

void merge_casts(Graph& graph, Reports& reports) {
  bool merged = false;
  for (Node* node : graph.nodes()) {
    Value* source = source_of(node);
    if (source == nullptr) continue;
    const Value* between = node->input(0);
    const bool returns = source->type.dtype == node->output(0)->type.dtype && !graph.is_output(node->output(0));
    if (!returns && graph.only_reader(between) == nullptr) continue;
    const std::string label = between->producer->label();
    reports.push_back({.node = node->label(),
                       .what = returns ? concat("bypassed ", label, " and ", node->label())
                                       : concat("merged ", node->label(), " with ", label),
                       .why = "the first changes no value",
                       .bytes_saved = bytes_of(returns ? node->output(0) : between)});
    if (returns) {
      graph.replace_uses(node->output(0), source);
    } else {
      graph.set_input(*node, 0, source);
    }
    merged = true;
  }
  if (merged) graph.remove_dead_nodes();
}

}  // namespace backpass
