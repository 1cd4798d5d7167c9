#include "passes/match_norm.hpp"

#include <algorithm>
#include <limits>

#include "graph/op.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using namespace pattern;

/// The first of the axes that a node reduces and keeps, if these are the last ones.
std::optional<std::int64_t> first_reduced_axis(const Node* node) {
  const auto rank = static_cast<std::int64_t>(node == nullptr ? 0 : rank_of(node->input(0)));
  const Value* given = is_op(node, "ReduceMean") ? node->input(1) : nullptr;
  if (rank == 0 || given == nullptr || !given->constant || node->attr_int("keepdims", 1) != 1) return std::nullopt;
  std::vector<std::int64_t> axes;
  for (const double axis : given->constant->to_doubles()) {
    axes.push_back(static_cast<std::int64_t>(axis) + (axis < 0 ? rank : 0));
  }
  std::sort(axes.begin(), axes.end());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != rank - static_cast<std::int64_t>(axes.size() - i)) return std::nullopt;
  }
  return axes.empty() ? std::nullopt : std::optional(axes.front());
}

class Matcher {
 public:
  Matcher(const Graph& graph, Node& variance) : graph_(graph), variance_(variance) {}

  std::optional<WrittenNorm> run() {
    const std::optional<std::int64_t> axis = first_reduced_axis(&variance_);
    if (!axis || !take_squares()) return std::nullopt;
    found_.axis = *axis;
    take_center();
    Value* deviation = take_deviation();
    if (deviation == nullptr || !(take_quotient(deviation) || take_folded(deviation))) return std::nullopt;
    if (!has_same_type(found_.x, found_.result->output(0))) return std::nullopt;
    take_casts();
    take_parameters();
    return is_closed() ? std::optional(found_) : std::nullopt;
  }

 private:
  Node* take(Node* node) {
    found_.nodes.insert(node);
    return node;
  }

  Value* skip(Value* v) {
    while (is_identity(v->producer)) v = take(v->producer)->input(0);
    return v;
  }

  /// Who alone reads the value, or what is the same; `v` is then what it reads.
  Node* reader_of(Value*& v) {
    Node* reader = graph_.only_reader(v);
    for (; is_identity(reader); reader = graph_.only_reader(v)) v = take(reader)->output(0);
    return reader;
  }

  bool take_squares() {
    take(&variance_);
    Value* squares = skip(variance_.input(0));
    Node* node = squares->producer;
    const bool is_square = (is_op(node, "Pow") && number_of(node->input(1)) == 2) ||
                           (is_op(node, "Mul") && node->input(0) == node->input(1));
    if (!is_square) return false;
    base_ = skip(take(node)->input(0));
    found_.x = base_;
    return is_float(base_->type.dtype);
  }

  bool is_mean_of(const Value* mean, const Value* x) {
    Node* node = mean->producer;
    if (first_reduced_axis(node) != found_.axis || source_of(node->input(0)) != x) return false;
    take(node);
    skip(node->input(0));
    return true;
  }

  /// x, when `v` is x minus its mean.
  Value* centered(Value* v) {
    Node* node = v->producer;
    if (!is_op(node, "Sub")) return nullptr;
    Value* x = source_of(node->input(0));
    if (!is_mean_of(source_of(node->input(1)), x)) return nullptr;
    take(node);
    skip(node->input(0)), skip(node->input(1));
    return x;
  }

  void take_center() {
    Value* x = centered(base_);
    found_.is_centered = x != nullptr;
    if (x != nullptr) found_.x = x;
  }

  bool is_base(Value* v) {
    v = source_of(v);
    return v == base_ || (found_.is_centered && centered(v) == found_.x);
  }

  /// The root of the variance, or its inverse; null where there is none.
  Value* take_deviation() {
    Value* v = variance_.output(0);
    Node* sum = reader_of(v);
    if (!is_op(sum, "Add")) return nullptr;
    const std::optional<double> epsilon = number_of(sum->input(sum->input(0) == v ? 1 : 0));
    if (!epsilon || *epsilon < std::numeric_limits<float>::min()) return nullptr;
    found_.epsilon = *epsilon;
    v = take(sum)->output(0);
    Node* root = reader_of(v);
    double power = is_op(root, "Sqrt") ? 0.5 : 0;
    if (is_op(root, "Pow")) power = number_of(root->input(1)).value_or(0);
    if (power != 0.5 && power != -0.5) return nullptr;
    v = take(root)->output(0);
    is_inverse_ = power == -0.5;
    return is_inverse_ ? v : take_inverse(v);
  }

  Value* take_inverse(Value* root) {
    Node* reader = reader_of(root);
    const bool divides_one = is_op(reader, "Div") && reader->input(1) == root && number_of(reader->input(0)) == 1;
    is_inverse_ = divides_one || is_op(reader, "Reciprocal");
    return is_inverse_ ? take(reader)->output(0) : root;
  }

  bool take_quotient(Value* deviation) {
    Node* reader = reader_of(deviation);
    if (!is_op(reader, is_inverse_ ? "Mul" : "Div")) return false;
    const std::size_t base = reader->input(1) == deviation ? 0 : 1;
    if ((base == 1 && !is_inverse_) || !is_base(reader->input(base))) return false;
    skip(reader->input(base));
    found_.result = take(reader);
    return true;
  }

  /// Scale and mean are folded into one factor and one term: x a + (bias - mean a), with a = scale / deviation.
  bool take_folded(Value* factor) {
    if (!is_inverse_ || !found_.is_centered) return false;
    if (Node* scaled = reader_of(factor); is_op(scaled, "Mul")) {
      found_.scale = scaled->input(scaled->input(0) == factor ? 1 : 0);
      factor = take(scaled)->output(0);
      if (!is_parameter(found_.scale)) return false;
    }
    if (graph_.use_count(factor) != 2 || factor->readers.size() != 2) return false;
    for (std::size_t i = 0; i < 2; ++i) {
      Node *of_x = factor->readers[i], *of_mean = factor->readers[1 - i];
      if (times(of_x, factor) == found_.x && times(of_mean, factor) != nullptr &&
          is_mean_of(times(of_mean, factor), found_.x)) {
        return take_shift(take(of_x)->output(0), take(of_mean)->output(0));
      }
    }
    return false;
  }

  static Value* times(const Node* node, const Value* factor) {
    return is_op(node, "Mul") ? source_of(node->input(node->input(0) == factor ? 1 : 0)) : nullptr;
  }

  bool take_shift(Value* scaled, Value* mean) {
    Node* shift = reader_of(mean);
    Node* sum = reader_of(scaled);
    if (!is_op(shift, "Sub") || shift->input(1) != mean || !is_op(sum, "Add")) return false;
    Value* term = take(shift)->output(0);
    if (reader_of(term) != sum || !is_parameter(shift->input(0))) return false;
    found_.bias = shift->input(0);
    found_.result = take(sum);
    return true;
  }

  /// Rows that are widened only to be normalised.
  void take_casts() {
    Value* v = found_.result->output(0);
    Node* wide = found_.x->producer;
    Node* back = graph_.only_reader(v);
    if (!is_op(wide, "Cast") || !is_op(back, "Cast") || found_.scale != nullptr || found_.bias != nullptr) return;
    if (!types::halves.has(wide->input(0)->type.dtype) || v->type.dtype != DType::float32) return;
    if (!has_same_type(wide->input(0), back->output(0))) return;
    found_.x = wide->input(0);
    found_.result = take(back);
  }

  void take_parameters() {
    if (found_.bias != nullptr) return;
    if (found_.scale == nullptr) found_.scale = parameter_of("Mul");
    if (found_.is_centered && found_.scale != nullptr) found_.bias = parameter_of("Add");
  }

  /// What the result is multiplied by, or what is added to it.
  Value* parameter_of(std::string_view op) {
    Value* v = found_.result->output(0);
    NodeSet between;
    Node* reader = graph_.only_reader(v);
    for (; is_identity(reader); reader = graph_.only_reader(v)) between.insert(reader), v = reader->output(0);
    if (!is_op(reader, op)) return nullptr;
    Value* other = reader->input(reader->input(0) == v ? 1 : 0);
    if (!is_parameter(other)) return nullptr;
    found_.nodes.insert(between.begin(), between.end());
    found_.result = take(reader);
    return other;
  }

  bool is_parameter(const Value* v) const {
    const Shape& x = *found_.x->type.shape;
    return v->type.is_tensor() && v->type.dtype == found_.x->type.dtype && v->type.shape &&
           *v->type.shape == Shape(x.begin() + found_.axis, x.end());
  }

  bool is_closed() const {
    return std::all_of(found_.nodes.begin(), found_.nodes.end(), [&](const Node* node) {
      return node == found_.result || is_read_within(graph_, node->output(0), found_.nodes);
    });
  }

  const Graph& graph_;
  Node& variance_;
  Value* base_ = nullptr;  // what is squared
  bool is_inverse_ = false;
  WrittenNorm found_;
};

}  // namespace

std::optional<WrittenNorm> match_norm(const Graph& graph, Node& variance) { return Matcher(graph, variance).run(); }

}  // namespace backpass
