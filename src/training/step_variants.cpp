#include "training/step_variants.hpp"

#include <chrono>

#include "graph/clone.hpp"
#include "plan/lower.hpp"
#include "training/data_costs.hpp"

namespace backpass {
namespace {

/// The forward part with its parameters marked as what no batch decides.
std::unique_ptr<Graph> looked_at(const StepSource& source) {
  std::unique_ptr<Graph> graph = clone(*source.forward()).graph;
  for (const Value* v : graph->inputs) {
    if (source.is_parameter(v)) graph->steady_inputs.push_back(v);
  }
  return graph;
}

}  // namespace

StepVariants::StepVariants(const StepSource& source, const SessionOptions& options, Profiler* profiler)
    : source_(source), options_(options), profiler_(profiler) {
  if (source.forward() != nullptr) looker_ = std::make_unique<DataLooker>(*looked_at(source), options);
  if (looker_ == nullptr || !looker_->has_choice()) get({});
}

StepVariant& StepVariants::get(const Names& chosen) {
  std::unique_ptr<StepVariant>& found = variants_[chosen];
  if (found == nullptr) {
    const auto begin = std::chrono::steady_clock::now();
    PassManager passes({options_.disabled_passes, options_.verify_passes, chosen}, kEveryPass);
    std::unique_ptr<Graph> graph = options_.optimize ? source_.rewritten(passes) : clone(source_.graph()).graph;
    found = std::make_unique<StepVariant>(std::move(graph), std::move(passes), source_.names().trainable, options_,
                                          profiler_);
    found->set_buckets(buckets_);
    build_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return *found;
}

StepVariants::Plan StepVariants::plan_of(StepVariant& variant, StepPurpose purpose) {
  if (purpose == StepPurpose::gradients) return variant.plan(accumulates_);
  ensure(rule_.has_value(), "an update without a rule");
  return variant.update_obstacle(*rule_).empty() ? variant.update_plan() : nullptr;
}

std::shared_ptr<ReadyPlan> StepVariants::ready_for(std::span<const RuntimeValue> values, StepPurpose purpose) {
  DataChoice choice;
  if (looker_ != nullptr) choice = looker_->look(values.first(source_.graph().inputs.size()));
  std::shared_ptr<ReadyPlan> ready;
  if (!choice.passes.empty()) ready = ready_if_it_fits(choice.passes, values, purpose);
  if (ready == nullptr) {
    choice.passes.clear();
    const Plan plan = plan_of(get({}), purpose);
    use(plan, purpose);
    ready = plan->ready_for(values);
  }
  ready->executable->binding_for(values);
  ++runs_[choice.passes];
  last_ = std::move(choice);
  return ready;
}

/// Sizes that data decide are planned at their largest, so a budget may suffice for the plain graph alone.
std::shared_ptr<ReadyPlan> StepVariants::ready_if_it_fits(const Names& chosen, std::span<const RuntimeValue> values,
                                                          StepPurpose purpose) {
  if (refused_.count(chosen) != 0) return nullptr;
  const Plan plan = plan_of(get(chosen), purpose);
  if (plan == nullptr) return nullptr;
  auto refuse = [&](const Error& error) {
    if (options_.max_memory == 0) throw;
    Report& report = refused_[chosen];
    report.pass = chosen.back();
    report.what = concat(report.pass, " is not chosen, whatever the data: its plan does not fit");
    report.why = error.what();
    report.bytes_saved = "0";
  };
  try {
    std::shared_ptr<ReadyPlan> ready = plan->ready_for(values);
    use(plan, purpose);
    return ready;
  } catch (const InvalidInput& error) {
    refuse(error);
  } catch (const Unsupported& error) {
    refuse(error);
  }
  return nullptr;
}

std::shared_ptr<ReadyPlan> StepVariants::plan_for(std::span<const RuntimeValue> values, StepPurpose purpose) {
  Plan plan = plan_of(latest(), purpose);
  if (plan == nullptr) plan = plan_of(get({}), purpose);
  return plan->ready_for(values);
}

/// Two arenas need not fit at once where memory is limited, nor those of two kinds of steps. Otherwise the arena of a
/// plan that data did not choose for a while is given back.
void StepVariants::use(const Plan& plan, StepPurpose purpose) {
  constexpr std::int64_t kPatience = 16;  // runs
  const std::int64_t patience = options_.max_memory > 0 ? 0 : kPatience;
  ++clock_;
  std::erase_if(used_, [&](const Used& u) {
    const bool is_done = u.plan != plan && (u.purpose != purpose || clock_ - u.run > patience);
    if (is_done) u.plan->release_memory();
    return u.plan == plan || is_done;
  });
  used_.push_back({plan, purpose, clock_});
  in_use_ = plan;
  last_purpose_ = purpose;
}

void StepVariants::set_buckets(std::vector<std::vector<std::size_t>> buckets) {
  std::erase_if(used_, [](const Used& u) { return u.purpose == StepPurpose::gradients; });
  if (last_purpose_ == StepPurpose::gradients) in_use_.reset();
  buckets_ = std::move(buckets);
  for (auto& [chosen, variant] : variants_) variant->set_buckets(buckets_);
}

void StepVariants::set_update(std::optional<UpdateRule> rule) {
  std::erase_if(used_, [](const Used& u) { return u.purpose == StepPurpose::update; });
  if (last_purpose_ == StepPurpose::update) in_use_.reset();
  last_purpose_ = StepPurpose::gradients;
  for (auto& [chosen, variant] : variants_) variant->drop_update();
  rule_ = std::move(rule);
}

Reports StepVariants::reports() {
  Reports reports = latest().reports();
  if (!source_.refusal().pass.empty()) reports.insert(reports.begin(), source_.refusal());
  if (looker_ != nullptr) reports.insert(reports.end(), looker_->reports().begin(), looker_->reports().end());
  for (const auto& [chosen, report] : refused_) reports.push_back(report);
  if (in_use_ != nullptr) {
    const std::shared_ptr<ReadyPlan> plan = in_use_->current();
    reports.insert(reports.end(), plan->reports.begin(), plan->reports.end());
  }
  return reports;
}

DataReport StepVariants::data_report() {
  DataReport report{.densities = with_sequences(last_), .chosen = last_.passes, .build_seconds = build_seconds_};
  for (const auto& [chosen, count] : runs_) report.choices.push_back({.passes = chosen, .runs = count});
  add_costs(report, [&](const Names& chosen) -> TrainingPlan& {
    const Plan plan = plan_of(get(chosen), last_purpose_);
    return plan == nullptr ? *plan_of(get({}), last_purpose_) : *plan;
  });
  return report;
}

}  // namespace backpass
