#include "training/outline.hpp"

#include <algorithm>
#include <unordered_map>

#include "graph/clone.hpp"

namespace backpass {
namespace {

// Operations that take as long as moving a byte between processor and memory.
constexpr double kOperationsPerByte = 8;

// What is smaller than this part of the peak stays, such as statistics of normalisations.
constexpr std::size_t kSmallShare = 10000;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

const BoundValue& bound(const Binding& binding, int v) { return binding.values[static_cast<std::size_t>(v)]; }

/// Of one node with numbers for extents.
double operations_of(const Node& node) {
  if (node.def != nullptr && node.def->flops != nullptr) {
    auto has_shape = [](const Value* v) { return v == nullptr || (v->type.shape && is_known(*v->type.shape)); };
    if (std::all_of(node.inputs.begin(), node.inputs.end(), has_shape) &&
        std::all_of(node.outputs.begin(), node.outputs.end(), has_shape)) {
      return static_cast<double>(node.def->flops(node).value());
    }
  }
  double elements = 0;
  for (const Value* v : node.outputs) {
    if (v == nullptr || !v->type.shape || !is_known(*v->type.shape)) continue;
    elements += static_cast<double>(element_count(to_dims(*v->type.shape)));
  }
  return elements;
}

using Parts = std::span<const std::shared_ptr<const Binding>>;

class OutlineMaker {
 public:
  OutlineMaker(const Program& program, Parts parts, const NodeSet& forward)
      : program_(program), parts_(parts), binding_(*parts.back()), forward_(forward) {}

  Outline run(const std::vector<double>& operations) {
    add_values();
    std::vector<const BoundStep*> kernels(program_.steps.size(), nullptr);
    for (const auto& part : parts_) {
      for (const BoundStep& b : part->steps) kernels[static_cast<std::size_t>(b.step)] = &b;
    }
    for (std::size_t s = 0; s < program_.steps.size(); ++s) add_step(s, kernels[s], operations[s]);
    find_views_that_run();
    for (std::size_t s = 0; s < program_.steps.size(); ++s) find_choosable(s);
    return std::move(outline_);
  }

 private:
  Outline::Value& value(int v) { return outline_.values[static_cast<std::size_t>(v)]; }

  void add_values() {
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      const BoundValue& b = binding_.values[v];
      Outline::Value& added = outline_.values.emplace_back();
      added.root = static_cast<int>(v);
      if (b.constant == nullptr && b.place.kind == Place::Kind::arena) added.bytes = rounded(b.bytes());
    }
    for (int v : program_.outputs) value(v).is_kept_to_the_end = true;
  }

  void add_step(std::size_t s, const BoundStep* kernel, double operations) {
    const Step& step = program_.steps[s];
    const OpDef& def = *step.node->def;
    Outline::Step& added = outline_.steps.emplace_back();
    double bytes = 0;
    auto move = [&](int v) {
      bytes += bound(binding_, v).is_known ? static_cast<double>(bound(binding_, v).bytes()) : 0;
    };
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      if (step.inputs[i] >= 0) move(step.inputs[i]);
      if (static_cast<int>(i) == def.in_place_input) added.in_place_input = static_cast<int>(added.inputs.size());
      if (step.inputs[i] >= 0) added.inputs.push_back(step.inputs[i]);
    }
    for (const SubProgram& sub : step.subprograms) {
      added.inputs.insert(added.inputs.end(), sub.captured.begin(), sub.captured.end());
    }
    for (int v : step.outputs) {
      if (v < 0) continue;
      move(v);
      added.outputs.push_back(v);
      value(v).producer = static_cast<int>(s);
    }
    added.runs = kernel != nullptr;
    added.is_forward = forward_.count(step.node) != 0;
    added.is_repeatable = is_repeatable(*step.node);
    if (def.in_place_input >= 0 && step.outputs.size() == 1) {
      added.in_place = step.kind == StepKind::tile ? Outline::InPlace::any : Outline::InPlace::first;
    }
    if (kernel != nullptr) {
      added.scratch = rounded(kernel->scratch_bytes);
      added.cost = operations + kOperationsPerByte * bytes;
    } else if (def.is_view && added.outputs.size() == 1 && bound(binding_, added.outputs[0]).constant == nullptr) {
      added.is_view = true;
      value(added.outputs[0]).root = value(added.inputs.at(0)).root;
      value(added.outputs[0]).bytes = 0;
    }
  }

  void find_views_that_run() {
    std::vector<char> is_read(outline_.values.size(), 0);
    for (int v : program_.outputs) is_read[static_cast<std::size_t>(v)] = 1;
    for (std::size_t s = outline_.steps.size(); s-- > 0;) {
      Outline::Step& step = outline_.steps[s];
      if (step.is_view) step.runs = is_read[static_cast<std::size_t>(step.outputs[0])] != 0;
      if (!step.runs) continue;
      for (int v : step.inputs) is_read[static_cast<std::size_t>(v)] = 1;
    }
  }

  /// Results of a step in the arena that need not stay there, and can be made again.
  void find_choosable(std::size_t s) {
    const Outline::Step& step = outline_.steps[s];
    for (const SubProgram& sub : program_.steps[s].subprograms) {
      for (int v : sub.captured) value(value(v).root).is_choosable = false;
    }
    if (!step.runs || !step.is_forward || !step.is_repeatable || step.is_view) return;
    for (int v : step.outputs) {
      value(v).is_choosable = value(v).bytes * kSmallShare > binding_.arena_bytes() && !value(v).is_kept_to_the_end;
    }
  }

  const Program& program_;
  Parts parts_;
  const Binding& binding_;
  const NodeSet& forward_;
  Outline outline_;
};

}  // namespace

namespace {

/// Contents that were known as expressions are numbers, or not known.
void set_contents(Value& value, const Tensor* constant) {
  if (!value.ints) return;
  value.ints.reset();
  if (constant == nullptr || constant->dtype() != DType::int64) return;
  const std::int64_t* numbers = constant->as<std::int64_t>();
  value.ints.emplace(numbers, numbers + constant->size());
}

}  // namespace

std::vector<double> count_operations(const Program& program, const Binding& binding) {
  const Clone numbers = clone(*program.graph);
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const auto found = numbers.copies.find(program.values[v]);
    if (found == numbers.copies.end() || !binding.values[v].is_known) continue;
    found->second->type.shape = to_shape(binding.values[v].dims());
    set_contents(*found->second, binding.values[v].constant);
  }
  std::unordered_map<const Node*, double> found;
  for (std::size_t i = 0; i < program.graph->nodes().size(); ++i) {
    found.emplace(program.graph->nodes()[i], operations_of(*numbers.graph->nodes()[i]));
  }
  std::vector<double> operations;
  for (const Step& step : program.steps) operations.push_back(found.at(step.node));
  return operations;
}

Outline make_outline(const Program& program, std::span<const std::shared_ptr<const Binding>> parts,
                     const NodeSet& forward, const std::vector<double>& operations) {
  return OutlineMaker(program, parts, forward).run(operations);
}

}  // namespace backpass
