#include "runtime/step_cost.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "graph/op.hpp"
#include "graph/partial_read.hpp"

namespace backpass {
namespace {

class Coster {
 public:
  explicit Coster(const Binding& binding) : binding_(binding) {}

  StepCost cost(const Step& step) {
    StepCost cost;
    cost.shapes = shapes(step.inputs) + " -> " + shapes(step.outputs);
    cost.flops = operations(step);
    cost.bytes = least_bytes(step);
    return cost;
  }

 private:
  const BoundValue& bound(int v) const { return binding_.values[static_cast<std::size_t>(v)]; }
  bool is_known(int v) const { return v >= 0 && bound(v).is_known; }
  std::int64_t bytes(int v) const { return is_known(v) ? static_cast<std::int64_t>(bound(v).bytes()) : 0; }

  std::string shapes(const std::vector<int>& values) const {
    std::string text;
    for (int v : values) {
      if (v < 0) continue;
      if (!text.empty()) text += ", ";
      text += is_known(v) ? std::string(name_of(bound(v).dtype)) + to_string(bound(v).dims()) : "?";
    }
    return text;
  }

  std::int64_t least_bytes(const Step& step) const {
    std::int64_t written = 0;
    for (int v : step.outputs) written += bytes(v);
    std::int64_t read = 0;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const int v = step.inputs[i];
      const auto before = step.inputs.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(step.inputs.begin(), before, v) != before) continue;  // it is read already
      read += i == 0 && reads_part(*step.node) ? std::min(bytes(v), written) : bytes(v);
    }
    return read + written;
  }

  /// OpDef::flops of the node with numbers for extents. Null for what is omitted.
  std::int64_t operations(const Step& step) const {
    const Node& node = *step.node;
    if (node.def == nullptr || node.def->flops == nullptr) return 0;
    std::deque<Value> values;
    auto numbered = [&](const std::vector<int>& numbers) {
      std::vector<Value*> found;
      for (int v : numbers) {
        found.push_back(v < 0 ? nullptr : &values.emplace_back());
        if (!is_known(v)) continue;
        values.back().type = Type::tensor(bound(v).dtype, to_shape(bound(v).dims()));
        if (bound(v).constant != nullptr) values.back().constant = *bound(v).constant;
      }
      return found;
    };
    std::vector<Value*> inputs = numbered(step.inputs);
    std::vector<Value*> outputs = numbered(step.outputs);
    if (std::any_of(values.begin(), values.end(), [](const Value& v) { return !v.type.shape; })) return 0;
    const Node copy{.name = node.name,
                    .op = node.op,
                    .domain = node.domain,
                    .def = node.def,
                    .inputs = GraphList<Value*>(std::move(inputs)),
                    .outputs = std::move(outputs),
                    .attributes = node.attributes,
                    .subgraphs = {}};
    const std::optional<Dim> count = unless_it_overflows([&] { return node.def->flops(copy); });
    return count && count->is_known() ? count->value() : 0;
  }

  const Binding& binding_;
};

}  // namespace

std::vector<StepCost> step_costs(const Binding& binding) {
  Coster coster(binding);
  std::vector<StepCost> costs;
  costs.reserve(binding.steps.size());
  for (const BoundStep& bound : binding.steps) {
    costs.push_back(coster.cost(binding.program->steps[static_cast<std::size_t>(bound.step)]));
  }
  return costs;
}

}  // namespace backpass
