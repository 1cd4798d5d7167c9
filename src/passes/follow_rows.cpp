#include <algorithm>

#include "graph/op.hpp"
#include "passes/match_labelled.hpp"
#include "passes/pattern.hpp"
#include "passes/row_axes.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::is_op;
using pattern::rank_of;

/// Rows of a value, and whether those that are ignored hold 0.
struct State {
  RowAxes rows;
  bool is_zero = false;
  bool is_over = false;  ///< no rows any more: all of them are summed
};

class Matcher {
 public:
  Matcher(const Graph& graph, Node& first, const Labels& labels, std::size_t class_axis)
      : graph_(graph), class_axis_(class_axis) {
    part_.first = &first;
    part_.labels = labels;
  }

  LabelledMatch run() {
    if (!take_scores() || !walk()) return {{}, why_not_};
    return {std::move(part_), ""};
  }

 private:
  bool refuse(std::string why) {
    if (why_not_.empty()) why_not_ = std::move(why);
    return false;
  }

  bool take_scores() {
    Value* v = part_.first->input(0);
    const std::size_t rank = rank_of(v);
    first_.rows.assign(rank, true);
    first_.rows.at(class_axis_) = false;
    extents_ = *v->type.shape;
    extents_.erase(extents_.begin() + static_cast<std::ptrdiff_t>(class_axis_));
    if (!(*v->type.shape)[class_axis_].is_known()) return refuse("the number of classes is not known");
    part_.scores = v;
    if (class_axis_ + 1 == rank) return true;
    std::vector<std::int64_t> moved{0, static_cast<std::int64_t>(rank) - 1};
    for (std::size_t i = 1; i + 1 < rank; ++i) moved.push_back(static_cast<std::int64_t>(i));
    if (is_op(v->producer, "Cast")) part_.widened = v->producer;
    Node* turned = part_.widened == nullptr ? v->producer : part_.widened->input(0)->producer;
    if (!is_op(turned, "Transpose") || turned->attr_ints("perm") != moved) {
      return refuse("the classes of '" + v->name + "' do not come from its last axis");
    }
    part_.turned = turned;
    part_.scores = turned->input(0);
    return true;
  }

  /// Through all that is made of the scores, as far as rows go.
  bool walk() {
    for (Node* node : graph_.nodes()) {
      if (node != part_.first && !reads_rows(*node)) continue;
      const std::size_t beside = part_.beside.size();
      const std::optional<State> made = worthwhile(*node, behind(*node));
      if (made) {
        take(*node, *made);
        continue;
      }
      part_.beside.resize(beside);
      if (!leave(*node)) return false;
    }
    for (Value* v : graph_.outputs) {
      if (states_.count(v) != 0 && !states_[v].is_over && !take_result(v, "is a result")) return false;
    }
    return !part_.results.empty() || is_reduced_;
  }

  bool reads_rows(const Node& node) {
    bool found = false;
    for_each_read(node, [&](Value* v) { found = found || (states_.count(v) != 0 && !states_[v].is_over); });
    return found;
  }

  /// Of numbers that are 0 for ignored rows, others are better not made before they have been put back.
  std::optional<State> worthwhile(const Node& node, std::optional<State> made) {
    if (!made || made->is_zero || made->is_over || &node == part_.first) return made;
    bool all_zero = true;
    for (const Value* v : node.inputs) {
      const State* state = state_of(node, v);
      if (state != nullptr && !state->is_zero) all_zero = false;
    }
    return all_zero ? std::nullopt : made;
  }

  void take(Node& node, const State& made) {
    part_.nodes.push_back(&node);
    states_[node.output(0)] = made;
    if (!made.is_over) return;
    is_reduced_ = true;
    if (is_op(&node, "ReduceSum")) part_.sums.push_back(&node);
  }

  /// The node reads results as if nothing had happened.
  bool leave(const Node& node) {
    if (&node == part_.first) return refuse("it has to do with more than rows");
    bool all = true;
    for_each_read(node, [&](Value* v) {
      if (states_.count(v) != 0 && !states_[v].is_over) all = take_result(v, "is read by " + node.label()) && all;
    });
    return all;
  }

  bool take_result(Value* v, const std::string& how) {
    const State& state = states_[v];
    if (!state.is_zero) return refuse("'" + v->name + "', which depends on rows with ignored labels, " + how);
    const Shape& shape = *v->type.shape;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!state.rows[i] && !shape[i].is(1)) return refuse("'" + v->name + "' has more than one number per row");
    }
    part_.results[v] = state.rows;
    return true;
  }

  const State* state_of(const Node& node, const Value* v) {
    if (&node == part_.first && v == node.input(0)) return &first_;
    const auto it = states_.find(v);
    return it == states_.end() || it->second.is_over ? nullptr : &it->second;
  }

  std::optional<State> behind(Node& node) {
    if (node.subgraphs.size() != 0 || node.def == nullptr || rank_of(node.output(0)) > kMostAxes) return std::nullopt;
    for (std::size_t i = 1; i < node.outputs.size(); ++i) {
      if (graph_.use_count(node.output(i)) != 0) return std::nullopt;
    }
    if (is_label_loss(node)) return behind_loss(node);
    if (is_op(&node, "GatherElements")) return behind_gather(node);
    if (node.def->tile != nullptr) return behind_elements(node);
    const State* state = state_of(node, node.input(0));
    if (state == nullptr) return std::nullopt;
    if (state->is_zero && sums_rows(node, state->rows)) return State{.rows = {}, .is_zero = false, .is_over = true};
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      if (state_of(node, node.input(i)) != nullptr) return std::nullopt;
    }
    const auto rows = rows_behind(node, state->rows);
    if (!rows) return std::nullopt;
    const bool keeps_zero = !node.op.starts_with("Reduce") && !node.op.ends_with("oftmax");
    return State{.rows = *rows, .is_zero = state->is_zero && keeps_zero};
  }

  /// Losses of other labels would need other rows.
  std::optional<State> behind_loss(const Node& loss) {
    const State* state = state_of(loss, loss.input(0));
    const bool fits = loss.input(1) == part_.labels.value && ignored_by(loss) == part_.labels.ignore_index;
    if (state == nullptr || !fits || state_of(loss, loss.input(2)) != nullptr) return std::nullopt;
    if (state->rows[1] || std::count(state->rows.begin(), state->rows.end(), false) != 1) return std::nullopt;
    if (loss.attr_string("reduction", "mean") != "none") return State{.rows = {}, .is_over = true};
    return State{.rows = RowAxes(state->rows.size() - 1, true), .is_zero = true};
  }

  std::optional<State> behind_gather(Node& node) {
    const State* state = state_of(node, node.input(0));
    if (state == nullptr || state->rows[axis_from_front(node.attr_int("axis", 0), state->rows.size())]) {
      return std::nullopt;
    }
    if (rank_of(node.input(1)) != state->rows.size() || !fits(node, 1, state->rows, true)) return std::nullopt;
    return State{.rows = state->rows};
  }

  std::optional<State> behind_elements(Node& node) {
    const std::size_t rank = rank_of(node.output(0));
    RowAxes rows;
    for (const Value* v : node.inputs) {
      const State* state = state_of(node, v);
      if (state == nullptr) continue;
      RowAxes own = state->rows;
      if (own.size() > rank) return std::nullopt;
      own.insert(own.begin(), rank - own.size(), false);
      if (!rows.empty() && rows != own) return std::nullopt;
      rows = own;
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.input(i) != nullptr && !fits(node, i, rows, false)) return std::nullopt;
    }
    return State{.rows = rows, .is_zero = stays_zero(node)};
  }

  /// Whether an operand, its axes counted from the last, goes with rows: it is rows, the same for all of them, or has
  /// one entry for each. `strict`: not the same for all.
  bool fits(Node& node, std::size_t i, const RowAxes& rows, bool strict) {
    const Value* v = node.input(i);
    if (state_of(node, v) != nullptr) return true;
    if (!v->type.is_tensor() || !v->type.shape || v->type.shape->size() > rows.size()) return false;
    const std::size_t missing = rows.size() - v->type.shape->size();
    bool is_same = !strict;
    bool is_own = true;
    bool leads = missing == 0;
    std::size_t row = 0;
    for (std::size_t axis = 0; axis < rows.size(); ++axis) {
      if (!rows[axis]) continue;
      const Dim extent = axis < missing ? Dim(1) : (*v->type.shape)[axis - missing];
      is_same = is_same && extent.is(1);
      is_own = is_own && axis >= missing && extent == extents_[row];
      leads = leads && axis == row;
      ++row;
    }
    if (is_same) return true;
    if (!is_own || (!leads && !part_.labels.decide(v))) return false;
    part_.beside.emplace_back(&node, i);
    return true;
  }

  bool is_zero(const Node& node, const Value* v) {
    const State* state = state_of(node, v);
    return state != nullptr ? state->is_zero : known_number(v) == 0;
  }

  bool stays_zero(const Node& node) {
    if (is_op(&node, "Where")) {
      const auto ignored = part_.labels.at_ignored(node.input(0));
      if (ignored && is_zero(node, node.input(*ignored ? 1 : 2))) return true;
      return is_zero(node, node.input(1)) && is_zero(node, node.input(2));
    }
    if (is_op(&node, "Neg") || is_op(&node, "Cast") || is_op(&node, "Abs")) return is_zero(node, node.input(0));
    if (is_op(&node, "Add") || is_op(&node, "Sub")) return is_zero(node, node.input(0)) && is_zero(node, node.input(1));
    if (is_op(&node, "Div")) return is_zero(node, node.input(0)) && known_number(node.input(1)).value_or(0) != 0;
    if (!is_op(&node, "Mul")) return false;
    return (is_zero(node, node.input(0)) && known_number(node.input(1))) ||
           (is_zero(node, node.input(1)) && known_number(node.input(0)));
  }

  static constexpr std::size_t kMostAxes = 8;

  const Graph& graph_;
  std::size_t class_axis_;
  State first_;
  Shape extents_;  // of rows
  std::map<const Value*, State> states_;
  LabelledPart part_;
  bool is_reduced_ = false;
  std::string why_not_;
};

}  // namespace

bool LabelledPart::is_plain() const {
  return beside.empty() && std::all_of(nodes.begin(), nodes.end(), [](const Node* node) {
           return is_op(node, "LogSoftmax") || is_label_loss(*node);
         });
}

LabelledMatch follow_rows(const Graph& graph, Node& first, const Labels& labels, std::size_t class_axis) {
  return Matcher(graph, first, labels, class_axis).run();
}

}  // namespace backpass
