// Reverse mode through iterations. One step of the backward Scan repeats one iteration from what it began with (kept by
// the forward node as further scan outputs), differentiates it, hands the gradients of the states on to the iteration
// before, and adds up those of captured values.
#include "ops/control_flow/iteration_rule.hpp"

#include <algorithm>
#include <array>

#include "gradient/activity.hpp"
#include "gradient/body.hpp"
#include "gradient/containers.hpp"
#include "gradient/forward_output.hpp"
#include "gradient/reverse.hpp"
#include "graph/infer.hpp"
#include "ops/control_flow/backward_loop.hpp"

namespace backpass {
namespace {

/// Whether it does for most extents: one that doubles stays what it is only where it is 0.
bool changes_shape(const Type& before, const Type& after) {
  if (!before.shape || !after.shape) return false;
  auto may_stay = [](const Dim& a, const Dim& b) {
    constexpr std::int64_t kSample = 7;
    auto name = a.symbol_name();
    if (!name) return !a.is_known() || !b.is_known() || a == b;
    const Dim probe = b.substituted({{*name, Dim(kSample)}});
    return !probe.is_known() || probe.is(kSample);
  };
  return !std::equal(before.shape->begin(), before.shape->end(), after.shape->begin(), after.shape->end(), may_stay);
}

/// The body with types that hold in every iteration: of a state that grows, it has those of the first one.
Graph& for_every_iteration(Graph& body, const Iteration& it) {
  bool any = false;
  for (const CarriedState& s : it.states) {
    if (!changes_shape(s.before->type, s.after->type)) continue;
    const Shape& after = *s.after->type.shape;
    for (std::size_t i = 0; i < s.before->type.shape->size() && i < after.size(); ++i) {
      Dim& extent = (*s.before->type.shape)[i];
      if (!extent.is_known() || extent == after[i]) continue;
      extent = Dim::symbol(concat(s.before->name, "@", i));
      any = true;
    }
  }
  if (any) {
    for (Node* node : body.nodes()) infer_node(body, *node);
  }
  return body;
}

class BackwardScan {
 public:
  BackwardScan(GradientContext& g, const Iteration& it)
      : g_(g),
        it_(it),
        forward_(forward_node(g)),
        body_(for_every_iteration(*forward_.subgraphs.front().second, it)),
        copy_(clone(body_)) {}

  void run(const GradientOptions& options) {
    find_active();
    differentiate(options);
    lay_out_inputs();
    emit();
  }

 private:
  struct Read {
    Value* inner;  ///< in the backward body
    Value* outer;
    std::int64_t axis = 0;
    std::int64_t reversed = 1;
  };

  bool has_gradient(const SlicedTensor& write) const {
    return g_.has_dy(write.position) && carries_gradient(write.slice);
  }

  /// Which states, slices and captured values lie between what is asked for and what comes back. States pass both on
  /// from iteration to iteration, so the answer is a fixed point.
  void find_active() {
    ValueSet from;
    ValueSet to;
    for (const SlicedTensor& r : it_.reads) {
      if (g_.wants(r.position)) from.insert(r.slice);
    }
    for (const Capture& c : wanted_captures(g_, body_)) from.insert(c.inner);
    for (const SlicedTensor& w : it_.writes) {
      if (has_gradient(w)) to.insert(w.slice);
    }
    for (const CarriedState& s : it_.states) {
      if (g_.wants(s.input)) from.insert(s.before);
      if (g_.has_dy(s.output)) to.insert(s.after);
    }
    for (bool grows = true; grows;) {
      grows = false;
      reached_ = reached_from(body_, from);
      needed_ = needed_for(body_, to);
      for (const CarriedState& s : it_.states) {
        if (!holds_floats(s.before->type) || !holds_floats(s.after->type)) continue;
        if (reached_.count(s.after) != 0) grows = from.insert(s.before).second || grows;
        if (needed_.count(s.before) != 0) grows = to.insert(s.after).second || grows;
      }
    }
  }

  bool is_active(const Value* v) const { return reached_.count(v) != 0 && needed_.count(v) != 0; }

  /// Turns the copy of the body into one that gives gradients.
  void differentiate(const GradientOptions& options) {
    Graph& back = *copy_.graph;
    std::vector<Value*> outputs;
    std::vector<Value*> wrt;
    auto arrives_at = [&](const Value* after) {
      outputs.push_back(copy_.of(after));
      seeds_.push_back(back.add_value(after->name + "_grad", gradient_type(after->type)));
      return seeds_.back();
    };
    for (const CarriedState& s : it_.states) {
      if (!holds_floats(s.before->type) || reached_.count(s.before) == 0 || needed_.count(s.after) == 0) continue;
      states_.push_back(s);
      back_states_.push_back(arrives_at(s.after));
      wrt.push_back(copy_.of(s.before));
    }
    for (const Capture& c : wanted_captures(g_, body_)) {
      if (!is_active(c.inner)) continue;
      captures_.push_back(c);
      wrt.push_back(copy_.of(c.inner));
    }
    for (const SlicedTensor& r : it_.reads) {
      if (!g_.wants(r.position) || !is_active(r.slice)) continue;
      slices_.push_back(r);
      wrt.push_back(copy_.of(r.slice));
    }
    for (const SlicedTensor& w : it_.writes) {
      if (has_gradient(w)) reads_.push_back({arrives_at(w.slice), g_.dy(w.position), w.axis, 1 - w.reversed});
    }
    if (it_.condition != nullptr) {
      copy_.of(it_.condition)->constant = Tensor::from<bool>(DType::boolean, {}, std::array<bool, 1>{true});
    }
    // Everything that may become an input stays one until it is known what is read.
    if (it_.condition != nullptr) std::erase(back.inputs, copy_.of(it_.condition));
    back.inputs.insert(back.inputs.end(), seeds_.begin(), seeds_.end());
    back.outputs.clear();
    std::vector<Value*> gradients = add_gradients(back, outputs, seeds_, wrt, options);
    add_up(gradients);
    back.outputs = std::move(gradients);
    finish_body(g_, back);
  }

  /// Gradients of captured values are summed over the iterations, in further states.
  void add_up(std::vector<Value*>& gradients) {
    Builder b(*copy_.graph, nullptr, "sum");
    for (std::size_t i = 0; i < captures_.size(); ++i) {
      Value* inner = copy_.of(captures_[i].inner);
      Value* sum = copy_.graph->add_value(inner->name + "_grad_sum", gradient_type(inner->type));
      back_states_.push_back(sum);
      copy_.graph->inputs.push_back(sum);
      Value*& gradient = gradients[states_.size() + i];
      gradient = sum->type.is_tensor() ? b.op("Add", {sum, gradient}) : sum_of(b, {sum, gradient});
    }
  }

  /// Everything the iteration began with and the differentiated one still reads.
  void lay_out_inputs() {
    ValueSet used(copy_.graph->outputs.begin(), copy_.graph->outputs.end());
    for (const Node* node : copy_.graph->nodes()) {
      for_each_read(*node, [&](const Value* v) { used.insert(v); });
    }
    std::erase_if(reads_, [&](const Read& r) { return used.count(r.inner) == 0; });
    for (const CarriedState& s : it_.states) {
      const bool is_used = used.count(copy_.of(s.before)) != 0;
      const bool is_kept = is_used && can_be_kept(s);
      if (is_kept) reads_.push_back({copy_.of(s.before), keep(s.before)});
      replayed_.push_back(is_used && !is_kept ? copy_.of(s.before) : nullptr);
    }
    for (const SlicedTensor& r : it_.reads) {
      const bool gives_length = it_.number == nullptr && reads_.empty() && &r == &it_.reads.back();
      if (used.count(copy_.of(r.slice)) == 0 && !gives_length) continue;
      reads_.push_back({copy_.of(r.slice), g_.x(r.position), r.axis, 1 - r.reversed});
    }
    if (it_.number != nullptr) {
      numbers_ = keep(it_.number);
      reads_.push_back({copy_.of(it_.number), numbers_});
    }
    complete_forward();
  }

  /// Whether the forward node can stack it. What varies in ways only run time knows is found when it does.
  bool can_be_kept(const CarriedState& s) const {
    const Type& before = s.before->type;
    if (before.is_tensor() && !changes_shape(before, s.after->type)) return true;
    if (it_.number != nullptr) return false;
    fail<Unsupported>(g_.node.label(), " gradient: an iteration turns state '", s.before->name, "' from ", before.str(),
                      " into ", s.after->type.str(),
                      ", expected a tensor whose shape every iteration keeps; give it one extent and fill it piece by "
                      "piece, or use a Loop");
  }

  /// Whether a Scan cannot carry what comes back.
  bool needs_loop() const {
    auto is_odd = [](const CarriedState& s) {
      return !s.before->type.is_tensor() || changes_shape(s.before->type, s.after->type);
    };
    return std::any_of(states_.begin(), states_.end(), is_odd) ||
           std::any_of(captures_.begin(), captures_.end(), [](const auto& c) { return !c.outer->type.is_tensor(); }) ||
           std::any_of(replayed_.begin(), replayed_.end(), [](const Value* v) { return v != nullptr; });
  }

  /// Makes the forward node give what a value of its body is in each iteration, stacked along axis 0.
  Value* keep(Value* inner) {
    Builder b(body_, nullptr, inner->name);
    body_.outputs.push_back(b.op("Identity", {inner}));
    Value* kept = g_.b.graph.add_value(concat(g_.node.name, "/", inner->name), Type::tensor(inner->type.dtype));
    kept->producer = &forward_;
    forward_.outputs.push_back(kept);
    for (const char* key : {"scan_output_axes", "scan_output_directions"}) {
      if (auto list = forward_.attributes.find(key); list != forward_.attributes.end()) {
        std::get<std::vector<std::int64_t>>(list->second).push_back(0);
      }
    }
    return kept;
  }

  /// States whose final value nobody asked for still receive a gradient there; what was known of outputs stays.
  void complete_forward() {
    for (const CarriedState& s : states_) {
      Value*& output = forward_.outputs[s.output];
      if (output != nullptr) continue;
      output = g_.b.graph.add_value(concat(g_.node.name, "/", s.after->name));
      output->producer = &forward_;
    }
    std::vector<std::pair<Value*, Type>> known;
    for (Value* v : forward_.outputs) {
      if (v != nullptr && v->type.shape) known.emplace_back(v, v->type);
    }
    infer_node(g_.b.graph, forward_);
    for (auto& [value, type] : known) value->type = std::move(type);
  }

  /// What the states of the backward node begin with.
  std::vector<Value*> initial_states() {
    std::vector<Value*> initial;
    for (const CarriedState& s : states_) initial.push_back(g_.dy(s.output));
    for (const Capture& c : captures_) initial.push_back(g_.zeros_like(c.outer));
    return initial;
  }

  void emit_loop() {
    BackwardLoop loop(g_, it_, *copy_.graph, g_.extent(numbers_, 0));
    for (const Read& r : reads_) loop.read(r.inner, r.outer);
    if (std::any_of(replayed_.begin(), replayed_.end(), [](const Value* v) { return v != nullptr; })) {
      loop.replay(body_, replayed_);
    }
    answer(loop.emit(std::move(copy_.graph), back_states_, initial_states()));
  }

  void emit() {
    if (it_.number != nullptr && needs_loop()) return emit_loop();
    std::vector<Value*> inputs = initial_states();
    copy_.graph->inputs = back_states_;
    std::vector<std::int64_t> in_axes;
    std::vector<std::int64_t> in_reversed;
    for (const Read& r : reads_) {
      copy_.graph->inputs.push_back(r.inner);
      inputs.push_back(r.outer);
      in_axes.push_back(r.axis);
      in_reversed.push_back(r.reversed);
    }
    copy_.graph->remove_dead_nodes();
    std::vector<std::int64_t> out_axes;
    std::vector<std::int64_t> out_reversed;
    for (const SlicedTensor& r : slices_) {
      out_axes.push_back(r.axis);
      out_reversed.push_back(1 - r.reversed);
    }
    AttributeList attributes{{"num_scan_inputs", std::ssize(reads_)},
                             {"scan_input_axes", std::move(in_axes)},
                             {"scan_input_directions", std::move(in_reversed)}};
    if (!slices_.empty()) {
      attributes.emplace_back("scan_output_axes", std::move(out_axes));
      attributes.emplace_back("scan_output_directions", std::move(out_reversed));
    }
    Bodies bodies;
    bodies.emplace_back("body", std::move(copy_.graph));
    const std::size_t count = back_states_.size() + slices_.size();
    answer(add_with_bodies(g_, "Scan", std::move(inputs), std::move(bodies), count, attributes));
  }

  void answer(const std::vector<Value*>& results) {
    auto next = results.begin();
    for (const CarriedState& s : it_.states) {
      const bool is_known =
          std::any_of(states_.begin(), states_.end(), [&](const auto& k) { return k.input == s.input; });
      if (is_known) {
        g_.set(s.input, *next++);
      } else {
        g_.set_zero(s.input);
      }
    }
    for (const Capture& c : captures_) g_.set_captured(c.outer, *next++);
    for (const SlicedTensor& r : it_.reads) {
      const bool is_known =
          std::any_of(slices_.begin(), slices_.end(), [&](const auto& k) { return k.position == r.position; });
      if (!is_known) {
        g_.set_zero(r.position);
        continue;
      }
      // Without iterations the result has no slices to tell the other extents by.
      Value* gradient = *next++;
      g_.set(r.position,
             g_.known_dims(g_.x(r.position)) ? gradient : g_.reshape_to(gradient, g_.shape_of(g_.x(r.position))));
    }
  }

  GradientContext& g_;
  const Iteration& it_;
  Node& forward_;
  Graph& body_;
  Clone copy_;
  ValueSet reached_;
  ValueSet needed_;
  std::vector<Value*> seeds_;
  std::vector<CarriedState> states_;  // those that carry gradients back
  std::vector<Capture> captures_;
  std::vector<SlicedTensor> slices_;
  std::vector<Value*> back_states_;  // inputs of the backward body
  std::vector<Value*> replayed_;     // per state: what the differentiated body reads and nobody could keep
  Value* numbers_ = nullptr;         // of all iterations, stacked
  std::vector<Read> reads_;
};

}  // namespace

void iteration_gradient(GradientContext& g, const Iteration& iteration, bool standard_only) {
  BackwardScan(g, iteration).run({.standard_only = standard_only});
}

}  // namespace backpass
