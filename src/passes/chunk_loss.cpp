#include <algorithm>

#include "graph/builder.hpp"
#include "ops/losses/linear_loss.hpp"
#include "passes/list.hpp"
#include "passes/match_head.hpp"

namespace backpass {
namespace {

// As fast as scores of all rows from some 1000 classes on, and faster with more, whatever the number of rows.
constexpr std::int64_t kManyClasses = 2048;

/// The gradient of the weights is there while the loss is handed out: fewer rows than features, with those that are
/// worked on together, have scores that need less memory.
bool are_many(const Dim& rows, const Dim& features, std::int64_t classes, std::size_t element) {
  if (!rows.is_known() || !features.is_known()) return true;
  return rows.value() > features.value() + rows_at_once({rows.value(), features.value(), classes, true}, element);
}

bool is_worth_it(const Head& head) {
  const Shape& scores = *head.scores->type.shape;
  Dim rows = scores[0];
  for (std::size_t i = 2; i < scores.size(); ++i) rows = rows * scores[i];
  const Dim features = (*head.weight->type.shape)[head.classes_first ? 1 : 0];
  return head.classes >= kManyClasses && are_many(rows, features, head.classes, byte_size(head.x->type.dtype, 1));
}

bool adds_up(const Node& loss) {
  const std::string reduction = loss.attr_string("reduction", "mean");
  return reduction == "mean" || reduction == "sum";
}

/// The shape that a Reshape gives scores, for x.
Value* with_features(Builder& b, Value* shape, Value* x) {
  Value* rows = b.op("Slice", {shape, b.ints({0}), b.ints({-1})});
  Value* features = b.op("Shape", {x}, {{"start", std::int64_t{-1}}});
  return b.op("Concat", {rows, features}, {{"axis", std::int64_t{0}}});
}

/// The rows of x whose scores the loss sees, [rows, features]. Only slices need the arrangement that comes before them.
Value* rows_of_x(Builder& b, const Head& head) {
  auto is_slice = [](const Node* node) { return node->op == "Slice"; };
  const auto last = std::find_if(head.way.rbegin(), head.way.rend(), is_slice).base();
  Value* x = head.x;
  for (auto it = head.way.begin(); it != last; ++it) {
    std::vector<Value*> inputs = (*it)->inputs;
    inputs[0] = x;
    if (!is_slice(*it)) inputs[1] = with_features(b, inputs[1], head.x);
    x = b.op((*it)->op, inputs);
  }
  return x->type.shape && x->type.shape->size() == 2 ? x : b.op("Flatten", {x}, {{"axis", std::int64_t{-1}}});
}

void rewrite_loss(Graph& graph, const Head& head) {
  Node& loss = *head.loss;
  Builder b(graph, &loss, loss.name);
  Value* x = rows_of_x(b, head);
  Value* labels = loss.input(1);
  if (labels->type.shape->size() != 1) labels = b.op("Reshape", {labels, b.ints({-1})});
  std::vector<Value*> inputs{x, head.weight, labels, head.bias, loss.input(2)};
  while (inputs.back() == nullptr) inputs.pop_back();
  graph.rewrite(loss, "backpass", "LinearCrossEntropy", inputs);
  loss.outputs.resize(1);
  loss.attributes.erase("output_type");
  loss.attributes["transB"] = std::int64_t{head.classes_first ? 1 : 0};
  if (head.ignore_index) loss.attributes["ignore_index"] = *head.ignore_index;
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
  const Value* input = i == 1 ? loss.input(0) : i == 2 ? head.weight : head.bias;
  Value* made = graph.add_value(old->name + "_unit", input->type);
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

bool knows_labels(const Node& loss) {
  const Value* labels = loss.input(1);
  return labels->type.is_tensor() && labels->type.shape;
}

}  // namespace

void chunk_loss(Graph& graph, Reports& reports) {
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const std::optional<Head> head = match_head(graph, *node);
    if (!head || !adds_up(*node) || !is_worth_it(*head) || !knows_labels(*node)) continue;
    const std::optional<HeadGradient> gradient = match_head_gradient(graph, *head);
    if (!gradient && graph.use_count(node->output(1)) != 0) continue;
    reports.push_back({.node = node->label(),
                       .what = "joined " + node->label() + " with " + head->product->label() + ", some rows at a time",
                       .why = "scores of all rows are never needed together, and those of ignored rows not at all",
                       .bytes_saved = bytes_of(head->scores)});
    rewrite(graph, *head, gradient);
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
