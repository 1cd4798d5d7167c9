#include <algorithm>
#include <map>
#include <set>

#include "graph/builder.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "passes/list.hpp"
#include "passes/match_labelled.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;
using pattern::rank_of;

AttributeList attributes_of(const Node& node) { return {node.attributes.begin(), node.attributes.end()}; }

std::string name_of(const Node& node) { return node.name.empty() ? node.output(0)->name : node.name; }

/// Rows with a label that counts, found once for all losses that have the same labels.
using FoundRows = std::map<std::pair<const Value*, std::int64_t>, Value*>;

/// Lets a part of the graph see only rows whose label counts.
class Filter {
 public:
  Filter(Graph& graph, FoundRows& found, const LabelledPart& part)
      : graph_(graph),
        found_(found),
        part_(part),
        b_(graph, part.first, name_of(*part.first)),
        row_axes_(rank_of(part.labels.value)),
        is_flat_(row_axes_ == 1 || part.is_plain()) {}

  void run() {
    Value* labels = part_.labels.value;
    Value*& known = found_[{labels, part_.labels.ignore_index}];
    if (known == nullptr) known = b_.op("LabelledRows", {labels}, what_counts(), "backpass");
    rows_ = known;
    flat_labels_ = row_axes_ == 1 ? labels : b_.op("Reshape", {labels, b_.ints({-1})});
    made_[labels] = arranged(b_.op("Gather", {flat_labels_, rows_}), {});
    made_[part_.scores] = chosen_scores();
    for (const auto& [node, i] : part_.beside) graph_.set_input(*node, i, chosen(node->input(i)));
    for (Node* node : part_.nodes) rewrite(*node);
    for (const Node* sum : part_.sums) divide_by_chosen(*sum);
    for (const auto& [value, rows] : part_.results) put_back(value, rows);
    graph_.sort_topologically();
  }

  Dim left() const { return rows_->type.shape->front(); }

 private:
  /// With what it takes to say what a loss says of labels that are no class.
  AttributeList what_counts() const {
    AttributeList attributes{{"ignore_index", part_.labels.ignore_index}};
    const auto loss = std::find_if(part_.nodes.begin(), part_.nodes.end(), [](auto* n) { return is_label_loss(*n); });
    if (loss == part_.nodes.end()) return attributes;
    attributes.emplace_back("classes", part_.scores->type.shape->back().value());
    attributes.emplace_back("loss", (*loss)->label());
    return attributes;
  }

  /// [chosen, ...] with as many axes of rows as there were, all but the last of extent 1.
  Value* arranged(Value* v, std::vector<std::int64_t> others) {
    if (is_flat_) return v;
    std::vector<std::int64_t> shape(row_axes_, 1);
    shape.back() = -1;
    shape.insert(shape.end(), others.begin(), others.end());
    return b_.op("Reshape", {v, b_.ints(shape)});
  }

  Value* chosen_scores() {
    Value* scores = part_.scores;
    const std::int64_t classes = scores->type.shape->back().value();
    if (rank_of(scores) != 2) scores = b_.op("Reshape", {scores, b_.ints({-1, classes})});
    Value* chosen = arranged(b_.op("Gather", {scores, rows_}), {classes});
    return part_.widened == nullptr ? chosen : b_.op("Cast", {chosen}, attributes_of(*part_.widened));
  }

  /// What stands for a value that has one entry per row.
  Value* chosen(Value* v) {
    if (const auto it = made_.find(v); it != made_.end()) return it->second;
    return made_[v] = part_.labels.decide(v) ? made_again(*v->producer) : gathered(v);
  }

  /// From the labels that are left.
  Value* made_again(const Node& node) {
    std::vector<Value*> inputs;
    for (Value* v : node.inputs) inputs.push_back(part_.labels.decide(v) ? chosen(v) : v);
    return b_.op(node.op, inputs, attributes_of(node), node.domain);
  }

  Value* gathered(Value* v) {
    if (row_axes_ == 1) return b_.op("Gather", {v, rows_});
    Value* others = b_.op("Shape", {v}, {{"start", static_cast<std::int64_t>(row_axes_)}});
    auto joined = [&](std::vector<std::int64_t> rows) {
      return b_.op("Concat", {b_.ints(std::move(rows)), others}, {{"axis", std::int64_t{0}}});
    };
    Value* flat = b_.op("Gather", {b_.op("Reshape", {v, joined({-1})}), rows_});
    std::vector<std::int64_t> rows(row_axes_, 1);
    rows.back() = -1;
    return b_.op("Reshape", {flat, joined(rows)});
  }

  void rewrite(Node& node) {
    if (&node == part_.first) {
      Value* scores = made_[part_.scores];
      const bool turns = part_.turned != nullptr && !is_flat_;
      graph_.set_input(node, 0, turns ? b_.op("Transpose", {scores}, attributes_of(*part_.turned)) : scores);
    }
    if (is_label_loss(node)) graph_.set_input(node, 1, made_[part_.labels.value]);
    if (is_flat_ && row_axes_ > 1 && node.op == "LogSoftmax") node.attributes["axis"] = std::int64_t{1};
    infer_node(graph_, node);
  }

  /// The weight of all labels that count is known from those that are left.
  void divide_by_chosen(const Node& sum) {
    Node* mean = graph_.only_reader(sum.output(0));
    if (!is_op(mean, "Div") || mean->input(0) != sum.output(0)) return;
    const Node* mass = mean->input(1)->producer;
    if (!is_op(mass, "ReduceSum") || mass->input(1) != nullptr || !part_.labels.silence(mass->input(0))) return;
    graph_.set_input(*mean, 1, b_.op("ReduceSum", {chosen(mass->input(0)), nullptr}, attributes_of(*mass)));
  }

  /// Among zeros.
  void put_back(Value* result, const std::vector<bool>& rows) {
    const std::string name = result->name;
    const std::vector<Node*> readers = result->readers;
    Builder b(graph_, nullptr, name);
    Value* zeros = b.op("Expand", {b.scalar(0, result), b.op("Shape", {flat_labels_})});
    Value* flat = rank_of(result) == 1 ? result : b.op("Reshape", {result, b.ints({-1})});
    Value* all = b.op("ScatterElements", {zeros, rows_, flat});
    if (rows.size() != 1) all = b.op("Reshape", {all, extents_of(b, rows)}, {{"allowzero", std::int64_t{1}}});
    for (Node* node : readers) hand_over(*node, result, all);
    std::replace(graph_.outputs.begin(), graph_.outputs.end(), result, all);
    graph_.rename(result, name + "_labelled");
    graph_.rename(all, name);
  }

  void hand_over(Node& node, Value* from, Value* to) {
    const bool is_ours = std::find(part_.nodes.begin(), part_.nodes.end(), &node) != part_.nodes.end();
    for (std::size_t i = 0; i < node.inputs.size() && !is_ours; ++i) {
      if (node.input(i) == from) graph_.set_input(node, i, to);
    }
  }

  /// Of all rows, with axes of extent 1 between theirs.
  Value* extents_of(Builder& b, const std::vector<bool>& rows) {
    if (rows.size() == row_axes_) return b.op("Shape", {part_.labels.value});
    std::vector<Value*> parts;
    std::int64_t row = 0;
    for (bool is_row : rows) {
      parts.push_back(is_row ? b.op("Shape", {part_.labels.value}, {{"start", row}, {"end", row + 1}}) : b.ints({1}));
      row += is_row ? 1 : 0;
    }
    return b.op("Concat", parts, {{"axis", std::int64_t{0}}});
  }

  Graph& graph_;
  FoundRows& found_;
  const LabelledPart& part_;
  Builder b_;
  std::size_t row_axes_;
  bool is_flat_;
  Value* rows_ = nullptr;
  Value* flat_labels_ = nullptr;
  std::map<const Value*, Value*> made_;
};

/// The product that scores come from, when it is made for this loss alone.
const Node* product_before(const Graph& graph, const Value* scores) {
  while (scores != nullptr && graph.use_count(scores) == 1) {
    const Node* node = scores->producer;
    if (is_op(node, "MatMul") || is_op(node, "Gemm")) return node;
    const bool goes_on = is_op(node, "Reshape") || is_op(node, "Cast") || is_op(node, "Slice") || is_op(node, "Add");
    if (!goes_on) return nullptr;
    const bool second = is_op(node, "Add") && is_op(node->input(1)->producer, "MatMul");
    scores = node->input(second ? 1 : 0);
  }
  return nullptr;
}

Report skipped(const Graph& graph, const std::string& loss, const LabelledPart& part, const Dim& left) {
  const Dim rows = product(*part.labels.value->type.shape);
  const Dim classes = part.scores->type.shape->back();
  const Node* head = product_before(graph, part.scores);
  Dim each = classes;
  if (head != nullptr && head->input(1)->type.shape) each = Dim(2) * product(*head->input(1)->type.shape);
  const auto size = static_cast<std::int64_t>(byte_size(part.scores->type.dtype, 1));
  const auto operations = unless_it_overflows([&] { return (rows - left) * each; });
  const auto bytes = unless_it_overflows([&] { return (rows - left) * classes * size; });
  return {.node = loss,
          .what = concat("left rows with label ", part.labels.ignore_index, " out of ", loss, ": ", left.str(), " of ",
                         rows.str(), " stay"),
          .why = "a loss does not depend on rows whose label is ignored",
          .operations_saved = operations ? operations->str() : "",
          .bytes_saved = bytes ? bytes->str() : ""};
}

}  // namespace

void skip_ignored_labels(Graph& graph, Reports& reports) {
  if (graph.parent != nullptr) return;
  std::set<const Node*> done;
  FoundRows found;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const LabelledMatch match = match_labelled(graph, *node);
    if (!match.part) {
      if (match.why_not.empty()) continue;
      reports.push_back({.node = node->label(),
                         .what = "left " + node->label() + " with all rows: " + match.why_not,
                         .why = match.why_not,
                         .bytes_saved = "0"});
      continue;
    }
    if (!done.insert(match.part->first).second) continue;
    Filter filter(graph, found, *match.part);
    filter.run();
    reports.push_back(skipped(graph, node->label(), *match.part, filter.left()));
  }
  if (!done.empty()) graph.remove_dead_nodes();
}

}  // namespace backpass
