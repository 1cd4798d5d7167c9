#include "ops/scan_rule.hpp"

#include <functional>
#include <memory>
#include <utility>

#include "gradient/clone.hpp"
#include "gradient/forward_output.hpp"
#include "gradient/reverse.hpp"
#include "graph/infer.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kForwards = 0;
constexpr std::int64_t kBackwards = 1;

std::vector<std::int64_t> per_item(const Node& node, std::string_view key, std::size_t count) {
  std::vector<std::int64_t> values = node.attr_ints(key);
  values.resize(count, 0);
  return values;
}

bool is_floating(const Value* v) { return v->type.is_tensor() && is_float(v->type.dtype); }

/// The Scan that computes the gradients of another one.
class BackwardScan {
 public:
  explicit BackwardScan(GradientContext& g)
      : g_(g), node_(forward_node(g)), graph_(g.b.graph), forward_(*node_.subgraphs.at(0).second) {
    scans_in_ = static_cast<std::size_t>(node_.attr_int("num_scan_inputs"));
    states_ = node_.inputs.size() - scans_in_;
    scans_out_ = node_.outputs.size() - states_;
  }

  void run() {
    std::vector<Value*> kept = keep_states();
    body_->name = forward_.name + "_grad";
    body_->parent = &graph_;
    add_captures();
    add_carried();
    add_scanned(kept);
    clone_into(*body_, forward_, copies_);
    differentiate_body();
    Node* scan = add_scan();
    for (std::size_t k = 0; k < answers_.size(); ++k) answers_[k](scan->outputs[k]);
  }

 private:
  /// Adds scan outputs with the states that each step began with.
  std::vector<Value*> keep_states() {
    std::vector<Value*> kept;
    Builder inside(forward_, nullptr, node_.name + "/kept");
    auto axes = per_item(node_, "scan_output_axes", scans_out_ + states_);
    auto directions = per_item(node_, "scan_output_directions", scans_out_ + states_);
    for (std::size_t s = 0; s < states_; ++s) {
      forward_.outputs.push_back(inside.op("Identity", {forward_.inputs[s]}));
      kept.push_back(graph_.add_value(node_.name + "_state"));
      kept.back()->producer = &node_;
      node_.outputs.push_back(kept.back());
    }
    node_.attributes.insert_or_assign("scan_output_axes", axes);
    node_.attributes.insert_or_assign("scan_output_directions", directions);
    infer_node(graph_, node_);
    return kept;
  }

  Value* add_input(const Value* like) {
    Value* v = body_->add_value(like->name, like->type);
    body_->inputs.push_back(v);
    return v;
  }

  void add_captures() {
    for (const Capture& c : forward_.captures) {
      Value* inner = body_->add_value(c.inner->name, c.outer->type);
      inner->constant = c.outer->constant;
      inner->ints = c.outer->ints;
      body_->captures.push_back({c.outer, inner});
      copies_.emplace(c.inner, inner);
    }
  }

  /// What goes from step to step: gradients of the states, sums for what is captured.
  void add_carried() {
    for (std::size_t s = 0; s < states_; ++s) {
      if (!is_floating(forward_.inputs[s])) continue;
      reads_.push_back(g_.has_dy(s) ? g_.dy(s) : g_.zeros_like(g_.x(s)));
      outputs_.push_back(forward_.outputs[s]);
      seeds_.push_back(add_input(forward_.inputs[s]));
      carried_.push_back(s);
    }
    for (const Capture& c : forward_.captures) {
      if (!g_.wants(c.outer)) continue;
      reads_.push_back(g_.zeros_like(c.outer));
      sums_.emplace_back(c, add_input(copies_.at(c.inner)));
    }
  }

  void scan_input(Value* outer, std::int64_t axis, std::int64_t direction) {
    reads_.push_back(outer);
    in_axes_.push_back(axis);
    in_directions_.push_back(direction);
  }

  void add_scanned(const std::vector<Value*>& kept) {
    auto axes = per_item(node_, "scan_input_axes", scans_in_);
    auto directions = per_item(node_, "scan_input_directions", scans_in_);
    for (std::size_t i = 0; i < forward_.inputs.size(); ++i) {
      copies_.emplace(forward_.inputs[i], add_input(forward_.inputs[i]));
      if (i < states_) {
        scan_input(kept[i], 0, kBackwards);
      } else {
        scan_input(g_.x(i), axes[i - states_], 1 - directions[i - states_]);
      }
    }
    axes = per_item(node_, "scan_output_axes", scans_out_);
    directions = per_item(node_, "scan_output_directions", scans_out_);
    for (std::size_t k = 0; k < scans_out_; ++k) {
      if (!g_.has_dy(states_ + k)) continue;
      scan_input(g_.dy(states_ + k), axes[k], 1 - directions[k]);
      outputs_.push_back(forward_.outputs[states_ + k]);
      seeds_.push_back(add_input(forward_.outputs[states_ + k]));
    }
  }

  void differentiate_body() {
    std::vector<Value*> outputs;
    for (const Value* v : outputs_) outputs.push_back(copies_.at(v));
    std::vector<Value*> wrt;
    for (std::size_t s : carried_) wrt.push_back(copies_.at(forward_.inputs[s]));
    for (const auto& [capture, sum] : sums_) wrt.push_back(copies_.at(capture.inner));
    std::vector<std::size_t> scanned;
    for (std::size_t i = states_; i < forward_.inputs.size(); ++i) {
      if (!g_.wants(i)) continue;
      scanned.push_back(i);
      wrt.push_back(copies_.at(forward_.inputs[i]));
    }
    const GradientOptions options{.standard_only = true};
    std::vector<Value*> found = add_gradients(*body_, outputs, seeds_, wrt, options);
    auto next = found.begin();
    for (std::size_t s : carried_) answer(*next++, [this, s](Value* v) { g_.set(s, v); });
    Builder inside(*body_, nullptr, node_.name + "_Grad/sum");
    for (const auto& [capture, sum] : sums_) {
      Value* outer = capture.outer;
      answer(inside.op("Add", {sum, *next++}), [this, outer](Value* v) { g_.set_captured(outer, v); });
    }
    for (std::size_t i : scanned) answer(*next++, [this, i](Value* v) { g_.set(i, v); });
    set_output_places(scanned);
    body_->remove_dead_nodes();
  }

  void answer(Value* output, std::function<void(Value*)> take) {
    body_->outputs.push_back(output);
    answers_.push_back(std::move(take));
  }

  void set_output_places(const std::vector<std::size_t>& scanned) {
    auto axes = per_item(node_, "scan_input_axes", scans_in_);
    auto directions = per_item(node_, "scan_input_directions", scans_in_);
    for (std::size_t i : scanned) {
      out_axes_.push_back(axes[i - states_]);
      out_directions_.push_back(directions[i - states_] == kForwards ? kBackwards : kForwards);
    }
  }

  Node* add_scan() {
    const std::string name = node_.name + "_Grad/Scan";
    std::vector<Value*> writes;
    for (std::size_t k = 0; k < body_->outputs.size(); ++k) writes.push_back(graph_.add_value(name));
    Node* scan = graph_.add_node("Scan", reads_, writes, name);
    scan->attributes.emplace("num_scan_inputs", static_cast<std::int64_t>(in_axes_.size()));
    scan->attributes.emplace("scan_input_axes", in_axes_);
    scan->attributes.emplace("scan_input_directions", in_directions_);
    scan->attributes.emplace("scan_output_axes", out_axes_);
    scan->attributes.emplace("scan_output_directions", out_directions_);
    scan->subgraphs.emplace_back("body", std::move(body_));
    infer_node(graph_, *scan);
    return scan;
  }

  GradientContext& g_;
  Node& node_;
  Graph& graph_;
  Graph& forward_;
  std::size_t states_ = 0, scans_in_ = 0, scans_out_ = 0;
  std::unique_ptr<Graph> body_ = std::make_unique<Graph>();
  ValueMap copies_;                               // from the forward body to body_
  std::vector<Value*> reads_;                     // inputs of the new Scan, as those of body_
  std::vector<const Value*> outputs_;             // of the forward body, with a gradient
  std::vector<Value*> seeds_;                     // their gradients in body_
  std::vector<std::size_t> carried_;              // states with a gradient
  std::vector<std::pair<Capture, Value*>> sums_;  // captured values with a gradient, and its sum so far
  std::vector<std::int64_t> in_axes_, in_directions_, out_axes_, out_directions_;
  std::vector<std::function<void(Value*)>> answers_;  // what each output of the new Scan is for
};

}  // namespace

void scan_gradient(GradientContext& g) {
  if (g.node.attr_int("batched", 0) != 0) {
    fail<Unsupported>(g.node.label(), " gradient: got the form of opset 8 with a batch axis, expected a newer one");
  }
  BackwardScan(g).run();
}

}  // namespace backpass
