#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "graph/op.hpp"
#include "passes/list.hpp"
#include "passes/match_activation.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;

using Perm = std::vector<std::int64_t>;

std::optional<std::size_t> rank_of(const Value* v) {
  if (v == nullptr || !v->type.is_tensor() || !v->type.shape) return std::nullopt;
  return v->type.shape->size();
}

/// A Linear being put together; `last` is the node that will become it.
struct Draft {
  Node* last = nullptr;
  Value* a = nullptr;
  Value* b = nullptr;
  Value* bias = nullptr;
  Perm perm_a, perm_b, perm_y;
  double alpha = 1;
  UnaryTile activation;
  bool widened = false;       ///< 16-bit operands, float32 result
  std::string parts;          ///< what was fused, for the report
  std::vector<Value*> inner;  ///< results on the way that nobody sees any more

  Value* result() const { return last->output(0); }
  void move_to(Node* new_last) {
    inner.push_back(result());
    last = new_last;
  }
  void absorb(const Node* node, Node* new_last) {
    parts += (parts.empty() ? "" : " + ") + node->op;
    if (new_last != nullptr) move_to(new_last);
  }
};

Perm transposition(const Node& node, std::size_t rank) {
  Perm perm = node.attr_ints("perm");
  if (!perm.empty()) return perm;
  perm.resize(rank);
  std::iota(perm.rbegin(), perm.rend(), 0);
  return perm;
}

/// perm applied after `first`.
Perm compose(const Perm& first, const Perm& perm) {
  if (perm.empty()) return first;
  Perm result;
  for (std::int64_t axis : perm) result.push_back(first[static_cast<std::size_t>(axis)]);
  return result;
}

/// gemm can read a matrix whose last stored axis is one of its two.
bool is_readable(const Perm& perm) {
  auto last = static_cast<std::int64_t>(perm.size()) - 1;
  return perm.size() >= 2 && (perm[perm.size() - 1] == last || perm[perm.size() - 2] == last);
}

/// Exporters transpose the last two axes of many matrices as Reshape to three axes, Transpose, Reshape back. Returns
/// what is so transposed into `v`, or null.
Value* transposed_matrices(const Value* v) {
  const Node* back = v->producer;
  const Node* swap = is_op(back, "Reshape") ? back->input(0)->producer : nullptr;
  const Node* join = is_op(swap, "Transpose") ? swap->input(0)->producer : nullptr;
  if (!is_op(join, "Reshape") || swap->attr_ints("perm") != Perm{0, 2, 1}) return nullptr;
  Value* x = join->input(0);
  const Value* joined = join->output(0);
  if (!rank_of(x) || *rank_of(x) < 3 || !rank_of(v) || *rank_of(v) != *rank_of(x) || !rank_of(joined)) return nullptr;
  Shape wanted = *x->type.shape;
  const Shape& matrices = *joined->type.shape;
  std::size_t last = wanted.size() - 1;
  if (where_not_empty(matrices[1]) != wanted[last - 1] || where_not_empty(matrices[2]) != wanted[last]) return nullptr;
  std::swap(wanted[last - 1], wanted[last]);
  return wanted == *v->type.shape ? x : nullptr;
}

/// A value that is another one with its axes in the order `perm`.
struct Transposed {
  Value* source;
  Perm perm;
};

std::optional<Transposed> transposed(const Value* v) {
  const Node* from = v->producer;
  if (is_op(from, "Transpose") && rank_of(from->input(0))) {
    return Transposed{from->input(0), transposition(*from, *rank_of(from->input(0)))};
  }
  Value* matrices = transposed_matrices(v);
  if (matrices == nullptr) return std::nullopt;
  Perm swap(*rank_of(matrices));
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[swap.size() - 2], swap[swap.size() - 1]);
  return Transposed{matrices, std::move(swap)};
}

class Fuser {
 public:
  Fuser(Graph& graph, Reports& reports) : graph_(graph), reports_(reports) {}

  void run() {
    std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      if (node->outputs.empty() || graph_.use_count(node->output(0)) == 0) continue;
      std::optional<Draft> draft = begin(node);
      if (!draft) continue;
      take_operand(*draft, draft->a, draft->perm_a);
      take_operand(*draft, draft->b, draft->perm_b);
      take_factor(*draft);
      take_bias(*draft);
      take_activation(*draft);
      take_result_transposition(*draft);
      take_widening(*draft);
      if (!draft->parts.empty()) finish(*draft, node);
    }
    graph_.remove_dead_nodes();
  }

 private:
  std::optional<Draft> begin(Node* node) {
    bool product = is_op(node, "MatMul");
    bool gemm = is_op(node, "Gemm");
    if (!product && !gemm) return std::nullopt;
    Draft draft;
    draft.last = node;
    draft.a = node->input(0);
    draft.b = node->input(1);
    if (!rank_of(draft.a) || !rank_of(draft.b) || !rank_of(node->output(0)) || !is_float(draft.a->type.dtype)) {
      return std::nullopt;
    }
    if (product) return draft;
    if (node->attr_int("transA", 0) != 0) draft.perm_a = {1, 0};
    if (node->attr_int("transB", 0) != 0) draft.perm_b = {1, 0};
    draft.alpha = node->attr_float("alpha", 1);
    float beta = node->attr_float("beta", 1);
    if (node->input(2) == nullptr || beta == 0) return draft;
    draft.bias = beta == 1 ? as_bias(node->input(2), *node->output(0)->type.shape) : nullptr;
    return draft.bias != nullptr ? std::optional(draft) : std::nullopt;
  }

  /// `v` as one element per column of a result of this shape, or null. Constants are reshaped to one axis.
  Value* as_bias(Value* v, const Shape& shape) {
    std::optional<std::size_t> rank = rank_of(v);
    if (!rank || *rank == 0 || *rank > shape.size() || v->type.dtype == DType::undefined) return nullptr;
    const Shape& own = *v->type.shape;
    if (!(own.back() == shape.back())) return nullptr;
    if (own.size() == 1) return v;
    bool row = std::all_of(own.begin(), own.end() - 1, [](const Dim& d) { return d.is(1); });
    if (!row || !v->constant) return nullptr;
    return graph_.add_constant(v->name, v->constant->reshaped({v->constant->dims().back()}));
  }

  /// Transpositions and scalar factors on the way into the product.
  void take_operand(Draft& draft, Value*& operand, Perm& perm) {
    while (Node* from = operand->producer) {
      if (std::optional<Transposed> t = transposed(operand)) {
        Perm composed = compose(t->perm, perm);
        if (!is_readable(composed)) return;
        perm = std::move(composed);
        if (graph_.use_count(operand) == 1) draft.inner.push_back(operand);
        operand = t->source;
        draft.absorb(from, nullptr);
        continue;
      }
      Value* tensor = nullptr;
      std::optional<double> factor = graph_.use_count(operand) == 1 ? factor_of(from, tensor) : std::nullopt;
      if (!factor || !multiply(draft, *factor)) return;
      draft.inner.push_back(operand);
      operand = tensor;
      draft.absorb(from, nullptr);
    }
  }

  /// The factor is kept as float32, which must be enough for the element type. It moves to the end of the product, so
  /// one that keeps numbers in range, where they would overflow or vanish without it, stays where it is.
  static bool multiply(Draft& draft, double factor) {
    constexpr double kFar = 0x1p24;
    if (!(std::abs(factor) <= kFar && std::abs(factor) >= 1 / kFar)) return false;
    double alpha = draft.alpha * factor;
    bool exact = static_cast<double>(static_cast<float>(alpha)) == alpha;
    if (draft.a->type.dtype == DType::float64 && !exact) return false;
    draft.alpha = alpha;
    return true;
  }

  /// When `node` multiplies a tensor by a constant scalar without changing its shape: the scalar, and the tensor in
  /// `v`.
  static std::optional<double> factor_of(const Node* node, Value*& v) {
    bool mul = is_op(node, "Mul");
    if (!mul && !is_op(node, "Div")) return std::nullopt;
    for (std::size_t i = 0; i < (mul ? 2U : 1U); ++i) {
      Value* tensor = node->input(i);
      std::optional<double> factor = scalar_constant(node->input(1 - i));
      if (!factor || tensor->constant || !rank_of(tensor) || *rank_of(tensor) != *rank_of(node->output(0))) continue;
      if (!mul && *factor == 0) continue;
      v = tensor;
      return mul ? *factor : 1 / *factor;
    }
    return std::nullopt;
  }

  void take_factor(Draft& draft) {
    if (draft.bias != nullptr) return;
    Node* reader = graph_.only_reader(draft.result());
    if (reader == nullptr || !rank_of(reader->output(0))) return;
    Value* tensor = nullptr;
    std::optional<double> factor = factor_of(reader, tensor);
    if (!factor || tensor != draft.result() || !multiply(draft, *factor)) return;
    draft.absorb(reader, reader);
  }

  void take_bias(Draft& draft) {
    Node* reader = graph_.only_reader(draft.result());
    if (draft.bias != nullptr || !is_op(reader, "Add") || *rank_of(draft.b) < 2) return;
    Value* other = reader->input(reader->input(0) == draft.result() ? 1 : 0);
    Value* bias = as_bias(other, *draft.result()->type.shape);
    if (bias == nullptr || other == draft.result()) return;
    draft.bias = bias;
    draft.absorb(reader, reader);
  }

  void take_activation(Draft& draft) {
    std::optional<MatchedActivation> found = match_activation(graph_, draft.result());
    if (!found) return;
    draft.activation = found->tile;
    draft.parts += (draft.parts.empty() ? "" : " + ") + std::string(found->tile.function->name);
    draft.move_to(found->last);
  }

  void take_result_transposition(Draft& draft) {
    Node* reader = graph_.only_reader(draft.result());
    if (!is_op(reader, "Transpose")) return;
    std::size_t rank = draft.result()->type.shape->size();
    Perm perm = transposition(*reader, rank);
    bool columns_stay = rank >= 2 && perm.size() == rank && perm.back() == static_cast<std::int64_t>(rank) - 1;
    bool vectors = *rank_of(draft.a) < 2 || *rank_of(draft.b) < 2;
    if (vectors) return;
    if (columns_stay) {
      draft.perm_y = std::move(perm);
    } else if (!exchange_operands(draft, perm)) {
      return;
    }
    draft.absorb(reader, reader);
  }

  /// Sums are float32 before they are rounded: gradients of float32 weights that were rounded for the product.
  void take_widening(Draft& draft) {
    Node* reader = graph_.only_reader(draft.result());
    if (!is_op(reader, "Cast") || !types::halves.has(draft.a->type.dtype)) return;
    if (reader->output(0)->type.dtype != DType::float32) return;
    draft.widened = true;
    draft.absorb(reader, reader);
  }

  /// The transposed product of two matrices is that of their transposes the other way round: gradients of transposed
  /// weights are asked for so.
  static bool exchange_operands(Draft& draft, const Perm& perm) {
    const std::size_t rank = perm.size();
    if (draft.bias != nullptr || *rank_of(draft.a) != rank || *rank_of(draft.b) != rank) return false;
    Perm same(rank);
    std::iota(same.begin(), same.end(), 0);
    Perm swap = same;
    std::swap(swap[rank - 2], swap[rank - 1]);
    if (perm != swap) return false;
    Perm a = compose(draft.perm_a.empty() ? same : draft.perm_a, swap);
    Perm b = compose(draft.perm_b.empty() ? same : draft.perm_b, swap);
    if (!is_readable(a) || !is_readable(b)) return false;
    std::swap(draft.a, draft.b);
    draft.perm_a = std::move(b);
    draft.perm_b = std::move(a);
    return true;
  }

  void finish(const Draft& draft, Node* product) {
    reports_.push_back({.node = product->label(),
                        .what = "fused " + product->label() + " with " + draft.parts,
                        .why = "the product reads its operands in any order and changes its result in registers",
                        .bytes_saved = bytes_of(draft.inner)});
    std::vector<Value*> inputs{draft.a, draft.b};
    if (draft.bias != nullptr) inputs.push_back(draft.bias);
    Node* node = draft.last;
    if (node->name.empty() || !product->name.empty()) node->name = product->name;
    graph_.rewrite(*node, "backpass", "Linear", inputs);
    node->attributes.clear();
    if (!draft.perm_a.empty()) node->attributes["perm_a"] = draft.perm_a;
    if (!draft.perm_b.empty()) node->attributes["perm_b"] = draft.perm_b;
    if (!draft.perm_y.empty()) node->attributes["perm_y"] = draft.perm_y;
    if (draft.alpha != 1) node->attributes["alpha"] = static_cast<float>(draft.alpha);
    if (draft.widened) node->attributes["result_type"] = static_cast<std::int64_t>(DType::float32);
    set_activation(*node, draft.activation);
  }

  Graph& graph_;
  Reports& reports_;
};

}  // namespace

void fuse_linear(Graph& graph, Reports& reports) { Fuser(graph, reports).run(); }

}  // namespace backpass
