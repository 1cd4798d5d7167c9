#include <algorithm>

#include "graph/builder.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "ops/custom/yield.hpp"
#include "ops/losses/linear_loss.hpp"
#include "passes/list.hpp"
#include "passes/match_head.hpp"

namespace backpass {
namespace {

// As fast as scores of all rows from some 1000 classes on, and faster with more.
constexpr std::int64_t kManyClasses = 2048;
// Of fewer, scores are small, and a vector holds those of several.
constexpr std::int64_t kLeastRows = 16;

/// As many as there can be: what is planned for them has to do for all.
Dim most_rows(const Graph& graph, const Head& head) {
  const Shape& shape = *head.scores()->type.shape;
  const Dim rows = product({shape.data(), shape.size() - 1});
  return rows.is_known() ? rows : rows.substituted(bounds_of_found_extents(graph));
}

DType work_type(const Head& head) { return types::halves.has(head.product_type) ? DType::float32 : head.product_type; }

/// The gradient of the weights is there while the loss is handed out. That of an input is a result of its own, which
/// has to be somewhere as soon as it is known; one that goes on to something else is kept instead of scores.
bool keeps_gradient(const Graph& graph, const Head& head, bool is_differentiated) {
  if (head.reduction == "none" || head.weight->constant) return false;
  const bool is_paused = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](auto* n) { return is_yield(*n); });
  if (is_differentiated && !is_paused) return false;
  return head.weight->producer != nullptr || head.weight->type.dtype != work_type(head);
}

/// Rows that are worked on together, of as many as there can be.
std::int64_t rows_together(const Head& head, std::int64_t rows, std::int64_t features) {
  const LinearLossShape shape{
      .rows = rows, .features = features, .classes = head.classes, .classes_first = true, .wants_gradients = true};
  return rows_at_once(shape, byte_size(work_type(head), 1));
}

const Dim& features_of(const Head& head) { return (*head.weight->type.shape)[head.classes_first ? 1 : 0]; }

/// Fewer rows than features, with those that are worked on together, have scores that need less memory.
bool has_many_rows(const Head& head, const Dim& rows) {
  const Dim& features = features_of(head);
  if (!rows.is_known() || !features.is_known()) return false;
  return rows.value() > features.value() + rows_together(head, rows.value(), features.value());
}

std::int64_t code_of(DType dtype) { return static_cast<std::int64_t>(dtype); }

/// The scores at a place of their way, made from x instead: features stand where classes were. Each stands before the
/// node that it takes the place of.
class Rows {
 public:
  Rows(Graph& graph, const Head& head) : graph_(graph), head_(head), made_{head.x} {}

  Value* at(std::size_t place) {
    while (made_.size() <= place) made_.push_back(next(made_.back(), head_.way[made_.size()].made_by));
    return made_[place];
  }

  /// All that the loss sees. Only what chooses or moves rows needs the arrangement that comes before it.
  Value* chosen() {
    std::size_t last = head_.way.size();
    while (last > 1 && (head_.way[last - 1].made_by == nullptr || only_arranges(*head_.way[last - 1].made_by))) --last;
    return at(last - 1);
  }

 private:
  static bool only_arranges(const Node& node) {
    return node.op == "Reshape" || node.op == "Flatten" || node.op == "Squeeze" || node.op == "Unsqueeze";
  }

  Value* next(Value* x, const Node* node) {
    if (node == nullptr) return x;
    Builder b(graph_, node, node->name.empty() ? "rows" : node->name + "_rows");
    std::vector<Value*> inputs = node->inputs;
    inputs[0] = x;
    if (node->op == "Reshape") inputs[1] = with_features(b, inputs[1]);
    const bool scales = node->op == "Mul" || node->op == "Div";
    if (scales && inputs[1]->type.dtype != x->type.dtype) {
      inputs[1] = b.op("Cast", {inputs[1]}, {{"to", code_of(x->type.dtype)}});
    }
    return b.op(node->op, inputs, {node->attributes.begin(), node->attributes.end()});
  }

  /// The shape that a Reshape gives scores, for x.
  Value* with_features(Builder& b, Value* shape) const {
    Value* rows = b.op("Slice", {shape, b.ints({0}), b.ints({-1})});
    Value* features = b.op("Shape", {head_.x}, {{"start", std::int64_t{-1}}});
    return b.op("Concat", {rows, features}, {{"axis", std::int64_t{0}}});
  }

  Graph& graph_;
  const Head& head_;
  std::vector<Value*> made_;
};

/// Who asks for the extents of scores gets them from x.
void redirect_shapes(Graph& graph, const Head& head, const Value* scores, std::size_t place, Rows& rows) {
  const std::vector<Node*> readers = scores->readers;
  for (Node* shape : readers) {
    if (shape->op != "Shape" || !shape->domain.empty()) continue;
    Value* x = rows.at(place);
    Builder b(graph, shape, shape->name);
    Value* before = b.op("Shape", {x}, {{"end", std::int64_t{-1}}});
    Value* all = b.op("Concat", {before, b.ints({head.classes})}, {{"axis", std::int64_t{0}}});
    const auto rank = static_cast<std::int64_t>(scores->type.shape->size());
    const std::int64_t from = shape->attr_int("start", 0);
    const std::int64_t to = shape->attr_int("end", rank);
    graph.replace_uses(shape->output(0), b.op("Slice", {all, b.ints({from}), b.ints({to})}));
  }
}

/// [rows, features], as the work is done.
Value* flat_rows(Builder& b, const Head& head, Value* x) {
  if (x->type.shape->size() != 2) x = b.op("Flatten", {x}, {{"axis", std::int64_t{-1}}});
  return x->type.dtype == work_type(head) ? x : b.op("Cast", {x}, {{"to", code_of(work_type(head))}});
}

/// One element per class, scaled as the scores are after it was added.
Value* flat_bias(Builder& b, const Head& head) {
  Value* bias = head.bias;
  if (bias == nullptr) return nullptr;
  if (bias->type.dtype != work_type(head)) bias = b.op("Cast", {bias}, {{"to", code_of(work_type(head))}});
  if (bias->type.shape->size() != 1) bias = b.op("Reshape", {bias, b.ints({-1})});
  for (const Head::Place& place : head.way) {
    if (place.made_by == nullptr || (place.made_by->op != "Mul" && place.made_by->op != "Div")) continue;
    Value* by = b.op("Reshape", {place.made_by->input(1), b.ints({1})});
    bias = b.op(place.made_by->op, {bias, b.op("Cast", {by}, {{"to", code_of(bias->type.dtype)}})});
  }
  return bias;
}

void set_attributes(Node& loss, const Head& head) {
  loss.attributes.clear();
  loss.attributes["reduction"] = head.reduction;
  loss.attributes["transB"] = std::int64_t{head.classes_first ? 1 : 0};
  if (head.ignore_index) loss.attributes["ignore_index"] = *head.ignore_index;
  if (head.smoothing != 0) loss.attributes["label_smoothing"] = head.smoothing;
  if (head.mean_of_none) loss.attributes["mean_of_none"] = *head.mean_of_none;
  if (head.weight->type.dtype != head.product_type) {
    loss.attributes["weight_type"] = code_of(head.product_type);
  }
}

/// The loss in another type, or with the extents of its labels: computed before it takes the place of the old one.
void rewrite_result(Graph& graph, const Head& head, Value* result) {
  Node& loss = *head.loss;
  Node* after = nullptr;
  const auto& nodes = graph.nodes();
  const auto it = std::find(nodes.begin(), nodes.end(), &loss);
  if (it + 1 != nodes.end()) after = *(it + 1);
  Builder b(graph, after, loss.name);
  Value* joined = graph.add_value(result->name + "_rows", Type::tensor(work_type(head)));
  loss.outputs = {joined};
  joined->producer = &loss;
  infer_node(graph, loss);
  Value* made = joined;
  if (joined->type.dtype != result->type.dtype) {
    made = b.op("Cast", {made}, {{"to", code_of(result->type.dtype)}});
  }
  if (head.reduction == "none" && head.labels->type.shape->size() != 1) {
    made = b.op("Reshape", {made, b.op("Shape", {head.labels})}, {{"allowzero", std::int64_t{1}}});
  }
  graph.replace_uses(result, made);
}

/// However few rows data leave, so many are worked on together as memory for all would allow.
void set_found_rows(Node& loss, const Head& head, const Dim& most) {
  const Dim& features = features_of(head);
  const bool is_found = !is_known(*loss.input(0)->type.shape) && most.is_known() && features.is_known();
  if (is_found) loss.attributes["rows_at_once"] = rows_together(head, most.value(), features.value());
}

void rewrite_loss(Graph& graph, const Head& head) {
  Node& loss = *head.loss;
  const Dim most = most_rows(graph, head);
  Value* result = loss.output(0);
  Rows rows(graph, head);
  redirect_shapes(graph, head, head.product->output(0), 0, rows);
  for (std::size_t i = 0; i < head.way.size(); ++i) redirect_shapes(graph, head, head.way[i].scores, i, rows);
  Builder b(graph, &loss, loss.name);
  Value* x = flat_rows(b, head, rows.chosen());
  Value* labels = head.labels;
  if (labels->type.shape->size() != 1) labels = b.op("Reshape", {labels, b.ints({-1})});
  Value* weights = head.class_weights;
  const DType dtype = work_type(head);
  if (weights != nullptr && weights->type.dtype != dtype) {
    weights = b.op("Cast", {weights}, {{"to", code_of(dtype)}});
  }
  std::vector<Value*> inputs{x, head.weight, labels, flat_bias(b, head), weights};
  while (inputs.back() == nullptr) inputs.pop_back();
  graph.rewrite(loss, "backpass", "LinearCrossEntropy", inputs);
  loss.outputs.resize(1);
  set_attributes(loss, head);
  set_found_rows(loss, head, most);
  const bool by_row = head.reduction == "none" && head.labels->type.shape->size() != 1;
  if (by_row || result->type.dtype != dtype) rewrite_result(graph, head, result);
}

bool is_one(const Value* v) {
  if (!v->constant || v->constant->size() != 1) return false;
  const Tensor& t = *v->constant;
  return t.dtype() == DType::float32 ? *t.as<float>() == 1 : t.dtype() == DType::float64 && *t.as<double>() == 1;
}

/// Takes the place of a gradient: output i of the loss now.
void take_over(Graph& graph, Builder& b, const Head& head, const HeadGradient& gradient, std::size_t i, Value* old) {
  if (old == nullptr) return;
  Node& loss = *head.loss;
  if (loss.outputs.size() <= i) loss.outputs.resize(i + 1, nullptr);
  Value* made = graph.add_value(old->name + "_unit", loss.input(i == 3 ? 3 : i - 1)->type);
  loss.outputs[i] = made;
  made->producer = &loss;
  if (!is_one(gradient.flow)) made = b.op("ScaleGradient", {made, gradient.flow}, {}, "backpass");
  const bool is_turned = old == gradient.dweight && gradient.classes_first != head.classes_first;
  if (!is_turned) return graph.replace_uses(old, made);
  const Node* back = graph.only_reader(old);
  if (back != nullptr && back->op == "Transpose" && back->domain.empty()) {
    graph.replace_uses(back->output(0), made);
  } else {
    graph.replace_uses(old, b.op("Transpose", {made}, {{"perm", std::vector<std::int64_t>{1, 0}}}));
  }
}

void rewrite(Graph& graph, const Head& head, const std::optional<HeadGradient>& gradient) {
  rewrite_loss(graph, head);
  if (!gradient) return;
  Builder b(graph, gradient->node, head.loss->name);
  take_over(graph, b, head, *gradient, 1, gradient->dx);
  take_over(graph, b, head, *gradient, 2, gradient->dweight);
  take_over(graph, b, head, *gradient, 3, gradient->dbias);
}

std::string why_read(const Graph& graph, const Value& log_prob) {
  if (graph.is_output(&log_prob)) return "the log probabilities '" + log_prob.name + "' are a result";
  const Node& reader = *log_prob.readers.front();
  const bool is_gradient = reader.domain == "com.microsoft" && reader.op.find("LossGrad") != std::string::npos;
  if (!is_gradient) return "the log probabilities '" + log_prob.name + "' are read by " + reader.label();
  return "the gradient of the scores, by " + reader.label() + ", goes elsewhere than to x, weights and bias";
}

/// Why the scores of all rows stay; empty: they need not.
std::string reason_to_keep(const Graph& graph, const Head& head, const std::optional<HeadGradient>& gradient) {
  const Value* log_prob = head.loss->output(1);
  if (!head.labels->type.is_tensor() || !head.labels->type.shape) return "the rank of the labels is not known";
  const Dim rows = most_rows(graph, head);
  if (rows.is_known() && rows.value() < kLeastRows) {
    return concat(rows.value(), " rows are few, expected at least ", kLeastRows);
  }
  const bool is_differentiated = gradient.has_value();
  if (!is_differentiated && graph.use_count(log_prob) != 0) return why_read(graph, *log_prob);
  if (is_differentiated && (head.reduction == "none" || types::halves.has(head.product_type))) {
    return "the graph has gradients already, of a kind that is not known here";
  }
  if (keeps_gradient(graph, head, is_differentiated) && !has_many_rows(head, rows)) {
    return "the gradient of the weights, which would be kept instead of scores, may need more memory than they";
  }
  return "";
}

Report joined(const Node& loss, const Head& head) {
  return {.node = loss.label(),
          .what = "joined " + loss.label() + " with " + head.product->label() + ", some rows at a time",
          .why = "scores of all rows are never needed together, and those of ignored rows not at all",
          .bytes_saved = bytes_of(head.scores())};
}

}  // namespace

void chunk_loss(Graph& graph, Reports& reports) {
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    HeadMatch match = match_head(graph, *node);
    if (match.classes < kManyClasses) continue;
    std::optional<HeadGradient> gradient;
    if (match.head) {
      gradient = match_head_gradient(graph, *match.head);
      match.why_not = reason_to_keep(graph, *match.head, gradient);
    }
    if (!match.why_not.empty()) {
      reports.push_back({.node = node->label(),
                         .what = "left " + node->label() + " with scores of all rows: " + match.why_not,
                         .why = match.why_not,
                         .bytes_saved = "0"});
      continue;
    }
    reports.push_back(joined(*node, *match.head));
    rewrite(graph, *match.head, gradient);
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
