#include "training/module_variants.hpp"

#include <chrono>

#include "graph/clone.hpp"
#include "plan/lower.hpp"
#include "runtime/call_scope.hpp"
#include "training/data_costs.hpp"

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
  auto built = std::make_shared<ModuleVariant>(
      ModuleVariant{seeded, chosen, variants_.size() - 1, std::move(module), std::move(passes)});
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
  if (found != nullptr) return found;
  const auto begin = std::chrono::steady_clock::now();
  found = build(seeded, chosen);
  build_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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

DataReport ModuleVariants::densities() {
  std::lock_guard lock(mutex_);
  DataReport report{.densities = with_sequences(last_), .chosen = last_.passes, .build_seconds = build_seconds_};
  for (const auto& [chosen, count] : runs_) report.choices.push_back({.passes = chosen, .runs = count});
  return report;
}

DataReport ModuleVariants::data_report(const OutputMask& seeded) {
  DataReport report = densities();
  add_costs(report, [&](const Names& chosen) -> TrainingPlan& { return *get(seeded, chosen)->plan; });
  return report;
}

}  // namespace backpass
