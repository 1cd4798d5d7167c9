#include "training/data_costs.hpp"

#include "training/outline.hpp"

namespace backpass {
namespace {

/// Tensors without contents, of the extents that a run had.
std::vector<RuntimeValue> shapes_of_inputs(const Binding& binding) {
  std::vector<RuntimeValue> inputs;
  for (int v : binding.program->inputs) {
    const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
    inputs.emplace_back(Tensor(value.dtype, value.dims(), nullptr, nullptr));
  }
  return inputs;
}

void add_numbers(ChoiceReport& choice, const Program& program, const Binding& binding) {
  for (double operations : count_operations(program, binding)) choice.operations += operations;
  choice.bytes = static_cast<std::int64_t>(binding.arena_bytes());
}

}  // namespace

void add_costs(DataReport& report, const std::function<TrainingPlan&(const std::vector<std::string>&)>& plan_of) {
  if (report.densities.empty()) return;
  if (!report.choices.front().passes.empty()) report.choices.insert(report.choices.begin(), ChoiceReport());
  const std::shared_ptr<const Binding> last = plan_of(report.chosen).current()->executable->last_run();
  for (ChoiceReport& choice : report.choices) {
    const std::shared_ptr<ReadyPlan> plan = plan_of(choice.passes).current();
    std::shared_ptr<const Binding> numbers = plan->executable->last_run();
    if (choice.passes.empty() && last != nullptr) {
      numbers = at_most(plan->executable->binding_for(shapes_of_inputs(*last))).back();
    }
    if (numbers != nullptr) add_numbers(choice, *plan->program, *numbers);
  }
}

}  // namespace backpass
