#include "training/training_plan.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <unordered_map>

#include "graph/clone.hpp"
#include "plan/boundaries.hpp"
#include "plan/order.hpp"
#include "plan/recompute.hpp"
#include "training/outline.hpp"

namespace backpass {
namespace {

/// By values and nodes of the graph, for the outline's numbers.
class Choice {
 public:
  Choice(const Program& program, const Outline& outline) : outline_(outline), epochs_(find_epochs(outline)) {
    for (std::size_t v = 0; v < program.values.size(); ++v) values_.emplace(program.values[v], v);
    for (std::size_t s = 0; s < program.steps.size(); ++s) steps_.emplace(program.steps[s].node, s);
  }

  /// What the fates mean; they have to outlive it.
  Repeats repeats(const Fates& fates) const {
    return {[this, &fates](const Value* v) { return is_kept(v, fates); },
            [this, &fates](const Node* node) { return fate_of_step(outline_, steps_.at(node), fates); },
            [this](const Node* node) { return epochs_[steps_.at(node)]; }};
  }

 private:
  bool is_kept(const Value* v, const Fates& fates) const {
    const auto root = static_cast<std::size_t>(outline_.values[values_.at(v)].root);
    return !outline_.values[root].is_choosable || fates[root] == Fate::kept;
  }

  const Outline& outline_;
  std::vector<int> epochs_;
  std::unordered_map<const Value*, std::size_t> values_;
  std::unordered_map<const Node*, std::size_t> steps_;
};

std::string percent(double part, double whole) {
  const auto tenths = static_cast<long long>(whole > 0 ? 1000 * part / whole + 0.5 : 0);
  return concat(tenths / 10, ".", tenths % 10, " %");
}

/// Line by line what became of the values that the backward pass reads, after a line about all of them.
Reports describe(const Program& program, Outline outline, const std::vector<double>& operations,
                 const Recomputation& chosen, std::size_t needed) {
  for (Outline::Value& value : outline.values) value.is_unwanted = false;
  const Fates all = keep_all(outline);
  Rehearsal rehearsal(outline);
  const double before = rehearsal.run(all).cost;
  rehearsal.run(chosen.fates);
  double again = 0;
  for (std::size_t s = 0; s < outline.steps.size(); ++s) {
    again += rehearsal.repeats(static_cast<int>(s)) * operations[s];
  }
  Reports reports;
  std::size_t kept = 0;
  for (std::size_t v = 0; v < outline.values.size(); ++v) {
    if (!outline.values[v].is_choosable) continue;
    if (chosen.fates[v] == Fate::kept) ++kept;
    if (all[v] != Fate::kept || chosen.fates[v] == Fate::kept) continue;
    const auto s = static_cast<std::size_t>(outline.values[v].producer);
    const Node& node = *program.steps[s].node;
    Report report;
    report.pass = "recompute";
    report.node = node.label();
    report.what = concat("'", program.values[v]->name, "' is made again by the backward pass",
                         chosen.fates[v] > Fate::made_again ? " each time it is needed: " : ": ",
                         outline.values[v].bytes, " bytes for ", static_cast<long long>(operations[s]), " operations");
    report.why = "max_memory";
    report.operations_saved = concat("-", static_cast<long long>(operations[s]));
    report.bytes_saved = concat(outline.values[v].bytes);
    reports.push_back(std::move(report));
  }
  Report sum;
  sum.pass = "recompute";
  sum.what = concat("peak ", needed, " -> ", chosen.peak, " bytes: ", kept, " values kept, ", reports.size(),
                    " made again, about ", percent(chosen.cost - before, before), " more work");
  sum.why = "max_memory";
  sum.operations_saved = concat("-", static_cast<long long>(again));
  sum.bytes_saved = concat(static_cast<long long>(needed) - static_cast<long long>(chosen.peak));
  reports.insert(reports.begin(), std::move(sum));
  return reports;
}

[[noreturn]] void fail_for_budget(double given, std::size_t needed, std::size_t least) {
  if (given > 1) {
    fail("max_memory: got ", static_cast<std::size_t>(given), " bytes, expected at least ", least,
         "; use a smaller batch, or allow as much");
  }
  // A share that this share of what is needed surely contains.
  const double share = static_cast<double>(least + 1) / static_cast<double>(needed);
  if (share >= 1) {
    fail("max_memory: got ", given, " of ", needed,
         " bytes, expected at least 1; nothing that is kept there can be computed again: leave max_memory out");
  }
  const auto thousandths = std::min(static_cast<long long>(share * 1000) + 1, 1000LL);
  fail("max_memory: got ", given, " of ", needed, " bytes, expected at least ", static_cast<double>(thousandths) / 1000,
       "; use a smaller batch, or allow as much");
}

[[noreturn]] void fail_for_sizes(const Binding& binding, std::size_t needed, double given) {
  const Value& found = *binding.program->values[static_cast<std::size_t>(binding.found.front())];
  const std::string allowed = given > 1 ? concat(static_cast<std::size_t>(given), " bytes") : concat(given);
  fail<Unsupported>(
      "max_memory: got ", allowed, " for a run of at least ", needed, " bytes whose sizes data decide ('", found.name,
      "') without a bound: what to compute again is not chosen there; use a smaller batch, or allow as much");
}

/// The most that a run can take; where no bound is known, no budget contains it.
std::size_t most_bytes(std::shared_ptr<const Binding> binding) {
  const std::shared_ptr<const Binding> last = at_most(std::move(binding)).back();
  return last->rest == nullptr ? last->arena_bytes() : std::numeric_limits<std::size_t>::max();
}

}  // namespace

TrainingPlan::TrainingPlan(const Graph& graph, NodeSet forward, const SessionOptions& options, Profiler* profiler,
                           std::shared_ptr<BufferPool> results)
    : graph_(graph),
      forward_(std::move(forward)),
      options_(options),
      profiler_(profiler),
      results_(std::move(results)),
      has_backward_(forward_.size() < graph.nodes().size()),
      request_(read_recompute(options.recompute)),
      plain_(make_ready(nullptr)),
      current_(plain_) {
  if (options_.max_memory > 0 || !options_.recompute.empty()) order_gradients();
}

void TrainingPlan::order_gradients() {
  const std::vector<const Node*> order = with_gradients_early(*plain_->program, forward_);
  ordered_ = clone(graph_, order).graph;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (forward_.count(order[i]) != 0) ordered_forward_.insert(ordered_->nodes()[i]);
  }
}

std::shared_ptr<ReadyPlan> TrainingPlan::make_ready(std::unique_ptr<Graph> graph) const {
  auto ready = std::make_shared<ReadyPlan>();
  ready->own_graph = std::move(graph);
  ready->graph = ready->own_graph != nullptr ? ready->own_graph.get() : &graph_;
  ready->program = make_program(*ready->graph);
  ready->executable = std::make_unique<Executable>(*ready->program, options_.binding_cache, profiler_, results_);
  return ready;
}

std::shared_ptr<ReadyPlan> TrainingPlan::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

void TrainingPlan::allow_excess() {
  std::lock_guard lock(mutex_);
  may_exceed_ = true;
}

void TrainingPlan::grant_excess(std::size_t least, std::size_t needed) {
  std::lock_guard lock(mutex_);
  if (!may_exceed_) fail_for_budget(options_.max_memory, needed, least);
  granted_ = std::max(granted_, least);
}

std::size_t TrainingPlan::excess() const {
  std::lock_guard lock(mutex_);
  return granted_;
}

void TrainingPlan::release_memory() {
  plain_->executable->release_memory();
  current()->executable->release_memory();
}

/// A share is one of the most that any inputs so far needed: the arena stays as large as that.
std::size_t TrainingPlan::allowed(std::size_t needed) {
  if (options_.max_memory == 0) return std::numeric_limits<std::size_t>::max();
  std::lock_guard lock(mutex_);
  if (options_.max_memory > 1) return std::max(granted_, static_cast<std::size_t>(options_.max_memory));
  most_needed_ = std::max(most_needed_, needed);
  return std::max(granted_, static_cast<std::size_t>(options_.max_memory * static_cast<double>(most_needed_)));
}

std::shared_ptr<ReadyPlan> TrainingPlan::ready_for(std::span<const RuntimeValue> inputs) {
  std::shared_ptr<ReadyPlan> ready = current();
  const bool is_asked = has_backward_ && !options_.recompute.empty();
  const bool is_share = options_.max_memory <= 1;
  if (!is_asked && (options_.max_memory == 0 || (is_share && !has_backward_))) return ready;
  const std::shared_ptr<const Binding> plain = at_most(plain_->executable->binding_for(inputs)).back();
  const std::size_t needed = plain->arena_bytes();
  const std::size_t budget = allowed(needed);
  if (plain->rest != nullptr) {
    if (needed > budget) fail_for_sizes(*plain, needed, options_.max_memory);
    return plain_;
  }
  const bool is_chosen = !is_asked || ready != plain_;
  if (is_chosen && most_bytes(ready->executable->binding_for(inputs)) <= budget) return ready;
  ready = decide(inputs, needed, budget);
  std::lock_guard lock(mutex_);
  current_ = ready;
  return ready;
}

std::shared_ptr<ReadyPlan> TrainingPlan::decide(std::span<const RuntimeValue> inputs, std::size_t needed,
                                                std::size_t budget) {
  if (needed <= budget && options_.recompute.empty()) return plain_;
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<Program> ordered = make_program(*ordered_);
  const Program& program = *ordered;
  const std::vector<std::shared_ptr<const Binding>> parts = at_most(make_binding(program, inputs));
  const std::vector<double> operations = count_operations(program, *parts.back());
  Outline outline = make_outline(program, parts, ordered_forward_, operations);
  const Fates wanted = mark_unwanted(request_, program, outline);
  const Choice choice(program, outline);
  auto rewritten = [&](const Fates& fates) { return with_repeats(*ordered_, ordered_forward_, choice.repeats(fates)); };
  auto measure = [&](const Fates& fates) {
    const std::unique_ptr<Graph> graph = rewritten(fates);
    const std::unique_ptr<Program> repeating = make_program(*graph);
    return most_bytes(make_binding(*repeating, inputs));
  };
  RecomputeResult result;
  const std::size_t peak = options_.recompute.empty() ? 0 : measure(wanted);
  if (!options_.recompute.empty() && peak <= budget) {
    result = {{wanted, peak, Rehearsal(outline).run(wanted).cost}, true};
  } else {
    result = choose_recomputation(outline, budget, measure);
  }
  if (!result.fits) grant_excess(std::min(result.chosen.peak, needed), needed);
  if (!result.fits && result.chosen.peak >= needed) return plain_;
  std::shared_ptr<ReadyPlan> ready = make_ready(rewritten(result.chosen.fates));
  ready->reports = describe(program, outline, operations, result.chosen, needed);
  ready->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ready;
}

}  // namespace backpass
