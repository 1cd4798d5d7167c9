#include "training/module_variants.hpp"

#include <algorithm>

#include "graph/clone.hpp"
#include "plan/lower.hpp"
#include "runtime/call_scope.hpp"
#include "training/outline.hpp"

namespace backpass {

ModuleVariants::ModuleVariants(const Graph& plain, Names requires_grad, const SessionOptions& options,
                               Profiler* profiler)
    : plain_(plain),
      requires_grad_(std::move(requires_grad)),
      options_(options),
      profiler_(profiler),
      looker_(plain, options) {}

ModuleGraph ModuleVariants::differentiated(const OutputMask& seeded, PassManager* passes) const {
  std::unique_ptr<Graph> graph = clone(plain_).graph;
  if (options_.optimize && passes != nullptr) passes->run(*graph, Side::before);
  return add_module_gradients(std::move(graph), requires_grad_, seeded);
}

void ModuleVariants::prepare(const OutputMask& seeded) {
  CallScope call(options_);
  if (looker_.has_choice()) {
    differentiated(seeded, nullptr);
  } else {
    get(seeded, {});
  }
}

std::shared_ptr<ModuleVariant> ModuleVariants::build(const OutputMask& seeded, const Names& chosen) const {
  CallScope call(options_);
  PassManager passes({options_.disabled_passes, options_.verify_passes, chosen}, kEveryPass);
  ModuleGraph module = differentiated(seeded, &passes);
  if (options_.optimize) passes.run(*module.graph, Side::after);
  auto built = std::make_shared<ModuleVariant>(seeded, chosen, variants_.size() - 1, std::move(module), std::move(passes));
  const Graph& graph = *built->module.graph;
  built->lowered = options_.optimize ? lower(graph, built->passes) : clone(graph).graph;
  NodeSet forward = up_to_yield(*built->lowered);
  const bool may_repeat = options_.max_memory > 0 || !options_.recompute.empty();
  const NodeSet repeated = may_repeat ? nodes_to_repeat(*built->lowered, forward) : NodeSet();
  built->plan = std::make_unique<TrainingPlan>(*built->lowered, std::move(forward), options_, profiler_, results_);
  built->later = find_read_later(*built->plan->current()->program, built->module.user_outputs, repeated);
  return built;
}

std::shared_ptr<ModuleVariant> ModuleVariants::get(const OutputMask& seeded, const Names& chosen) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<ModuleVariant>& found = variants_[{seeded, chosen}];
  if (found == nullptr) found = build(seeded, chosen);
  return found;
}

std::shared_ptr<ModuleVariant> ModuleVariants::latest(const OutputMask& seeded) {
  Names chosen;
  {
    std::lock_guard lock(mutex_);
    chosen = last_.passes;
  }
  return get(seeded, chosen);
}

ReadyVariant ModuleVariants::ready_for(const OutputMask& seeded, std::span<const RuntimeValue> inputs) {
  CallScope call(options_);
  DataChoice choice = looker_.look(inputs);
  ReadyVariant ready;
  if (!choice.passes.empty() && !fits(seeded, choice.passes, inputs)) choice.passes.clear();
  ready.variant = get(seeded, choice.passes);
  ready.plan = ready.variant->plan->ready_for(inputs);
  count_run(*ready.variant, std::move(choice));
  return ready;
}

/// Sizes that data decide are planned at their largest, so a budget may suffice for the graph as it is alone.
bool ModuleVariants::fits(const OutputMask& seeded, const Names& chosen, std::span<const RuntimeValue> inputs) {
  if (options_.max_memory == 0) return true;
  {
    std::lock_guard lock(mutex_);
    if (refused_.count(chosen) != 0) return false;
  }
  try {
    get(seeded, chosen)->plan->ready_for(inputs);
    return true;
  } catch (const InvalidInput& error) {
    refuse(chosen, error.what());
  } catch (const Unsupported& error) {
    refuse(chosen, error.what());
  }
  return false;
}

ReadyVariant ModuleVariants::again(const OutputMask& seeded, const Names& chosen,
                                   std::span<const RuntimeValue> inputs) {
  CallScope call(options_);
  ReadyVariant ready{get(seeded, chosen), nullptr};
  ready.variant->plan->allow_excess();
  ready.plan = ready.variant->plan->ready_for(inputs);
  return ready;
}

void ModuleVariants::refuse(const Names& chosen, const std::string& why) {
  const std::string what = concat(chosen.back(), " is not chosen, whatever the data: its plan does not fit");
  std::lock_guard lock(mutex_);
  refused_.emplace(chosen, Report{.pass = chosen.back(), .what = what, .why = why, .bytes_saved = "0"});
}

/// Arenas of those that did not run for a while are given back; where memory is limited, of all but this one.
void ModuleVariants::count_run(const ModuleVariant& used, DataChoice choice) {
  constexpr std::int64_t kPatience = 16;  // runs
  std::lock_guard lock(mutex_);
  ++runs_[choice.passes];
  last_ = std::move(choice);
  ++clock_;
  for (auto& [key, variant] : variants_) {
    if (variant.get() == &used) variant->last_run = clock_;
    const std::int64_t waited = clock_ - variant->last_run;
    if (waited == kPatience || (waited == 1 && options_.max_memory > 0)) variant->plan->release_memory();
  }
}

Reports ModuleVariants::refusals() {
  Reports reports = looker_.reports();
  std::lock_guard lock(mutex_);
  for (const auto& [chosen, report] : refused_) reports.push_back(report);
  return reports;
}

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

}  // namespace

DataReport ModuleVariants::data_report(const OutputMask& seeded) {
  DataReport report;
  std::map<Names, std::int64_t> runs;
  {
    std::lock_guard lock(mutex_);
    report.densities = last_.densities;
    report.chosen = last_.passes;
    runs = runs_;
  }
  if (runs.empty()) return report;
  const std::shared_ptr<ReadyPlan> last = get(seeded, report.chosen)->plan->current();
  const std::shared_ptr<const Binding> binding = last->executable->last_run();
  runs.try_emplace({});  // what the others are compared with
  for (const auto& [chosen, count] : runs) {
    ChoiceReport& choice = report.choices.emplace_back(ChoiceReport{chosen, count});
    if (binding == nullptr) continue;
    const std::shared_ptr<ReadyPlan> plan = get(seeded, chosen)->plan->current();
    const bool is_last = chosen == report.chosen;
    const auto numbers = is_last ? binding : at_most(plan->executable->binding_for(shapes_of_inputs(*binding))).back();
    if (!is_last && chosen.size() > 0) continue;
    for (double operations : count_operations(*plan->program, *numbers)) choice.operations += operations;
    choice.bytes = static_cast<std::int64_t>(numbers->arena_bytes());
  }
  return report;
}

}  // namespace backpass
