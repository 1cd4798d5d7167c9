#include "training/module_session.hpp"

#include <algorithm>
#include <set>

#include "model/export.hpp"
#include "model/import.hpp"
#include "model/parameters.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "runtime/arena_need.hpp"
#include "runtime/call_scope.hpp"
#include "runtime/options.hpp"
#include "runtime/unshare.hpp"
#include "runtime/value_info.hpp"
#include "support/random_seed.hpp"
#include "training/module_variants.hpp"

namespace backpass {
namespace {

using Mask = OutputMask;

bool draws_numbers(const Graph& graph) {
  for (const Node* node : graph.nodes()) {
    const bool elsewhere = node->domain == "org.pytorch.aten" || node->op == "PythonOp";  // torch's own numbers
    if (node->def != nullptr && node->def->is_random && !elsewhere) return true;
    for (const auto& [key, sub] : node->subgraphs) {
      if (draws_numbers(*sub)) return true;
    }
  }
  return false;
}

std::size_t output_number(const Graph& graph, std::string_view name, std::string_view what) {
  auto it = std::find_if(graph.outputs.begin(), graph.outputs.end(), [&](const Value* v) { return v->name == name; });
  if (it == graph.outputs.end()) fail(what, " '", name, "': got a name that is no output of the module's graph");
  return static_cast<std::size_t>(it - graph.outputs.begin());
}

bool is_scalar(const Value& v) {
  return v.type.shape && std::all_of(v.type.shape->begin(), v.type.shape->end(), [](const Dim& d) { return d.is(1); });
}

struct Imported {
  std::unique_ptr<Graph> graph;
  std::int64_t opset = 0;
};

Imported import(const onnx_io::ModelProto& model, const SessionOptions& options) {
  CallScope call(checked(options));
  Import result = import_model(model);
  throw_if_any(result.problems, model.opening);
  return {std::move(result.graph), opset_of(model)};
}

}  // namespace

class ModuleSession::Pending {
 public:
  Pending(ReadyVariant ready, RandomRun random, std::unique_ptr<Executable::Paused> paused)
      : variant_(std::move(ready.variant)), plan_(std::move(ready.plan)), random_(random), paused_(std::move(paused)) {}

 private:
  friend class ModuleSession;
  friend struct ModuleSession::Impl;
  std::shared_ptr<ModuleVariant> variant_;
  std::shared_ptr<ReadyPlan> plan_;  // outlives what is paused in it
  RandomRun random_;
  std::unique_ptr<Executable::Paused> paused_;
  std::vector<RuntimeValue> inputs_;  // once it is no more paused
  std::vector<Dims> extents_;         // of the outputs
};

struct ModuleSession::Impl {
  std::unique_ptr<Graph> plain;  // as imported: what the variants are copies of
  std::int64_t opset;
  std::vector<std::string> requires_grad;
  SessionOptions options;
  std::vector<ValueInfo> inputs, outputs;
  Mask differentiable;
  bool is_random = false;
  Profiler profiler;
  RandomSource random;
  ModuleVariants variants;
  std::mutex mutex;
  Mask expected;  // outputs that gradients are expected for

  Impl(Imported imported, std::vector<std::string> wrt, const SessionOptions& o, std::span<const std::string> constant)
      : plain(std::move(imported.graph)),
        opset(imported.opset),
        requires_grad(std::move(wrt)),
        options(checked(o)),
        variants(*plain, requires_grad, options, options.profile ? &profiler : nullptr) {
    for (const Value* v : plain->inputs) inputs.push_back(describe(*v));
    for (const Value* v : plain->outputs) outputs.push_back(describe(*v));
    differentiable = backpass::differentiable_outputs(*plain, requires_grad);
    for (const std::string& name : constant) differentiable[output_number(*plain, name, "constant_outputs")] = false;
    is_random = draws_numbers(*plain);
    expected = differentiable;
    bool any_scalar = false;
    for (std::size_t k = 0; k < expected.size(); ++k) {
      any_scalar = any_scalar || (differentiable[k] && is_scalar(*plain->outputs[k]));
    }
    for (std::size_t k = 0; any_scalar && k < expected.size(); ++k) {
      expected[k] = differentiable[k] && is_scalar(*plain->outputs[k]);
    }
    variants.prepare(expected);
  }

  /// Of what ran last, or would.
  std::shared_ptr<ModuleVariant> latest() { return variants.latest(expectation()); }

  std::string written(const Graph& graph) const {
    ExportOptions how;
    how.opset = std::max<std::int64_t>(how.opset, opset);
    return onnx_io::write_model(export_graph(graph, how));
  }

  Mask expectation() {
    std::lock_guard lock(mutex);
    return expected;
  }

  void check(const std::vector<RuntimeValue>& values) const {
    if (values.size() != inputs.size()) fail("number of inputs: got ", values.size(), ", expected ", inputs.size());
    std::string problems;
    for (std::size_t i = 0; i < values.size(); ++i) problems += mismatch(*plain->inputs[i], values[i]);
    if (!problems.empty()) fail(problems.substr(1));
  }

  std::shared_ptr<Pending> start(ReadyVariant ready, RandomRun run, std::vector<RuntimeValue> values,
                                 std::vector<RuntimeValue>& results) const {
    CallScope call(options);
    RandomScope scope(run);
    auto paused = ready.plan->executable->start(std::move(values), ready.variant->module.user_outputs, results);
    auto pending = std::make_shared<Pending>(std::move(ready), run, std::move(paused));
    for (const RuntimeValue& v : results) pending->extents_.push_back(v.is_tensor() ? v.tensor.dims() : Dims());
    return pending;
  }

  RandomRun run_for(std::optional<std::uint64_t> seed) { return seed ? RandomRun{*seed, 0} : random.next(); }

  Mask given(Mask arrived) const {
    arrived.resize(outputs.size());
    for (std::size_t k = 0; k < arrived.size(); ++k) arrived[k] = arrived[k] && differentiable[k];
    return arrived;
  }

  static bool goes_on(const Pending& pending, const Mask& mask) {
    return pending.paused_ != nullptr && mask == pending.variant_->seeded;
  }

  /// Others than expected want gradients, or a second time: the same pass once more, prepared for those.
  std::shared_ptr<Pending> restarted(const Pending& pending, const Mask& mask) {
    {
      std::lock_guard lock(mutex);
      expected = mask;
    }
    std::vector<RuntimeValue> ignored;
    std::vector<RuntimeValue> values = pending.paused_ ? pending.paused_->inputs() : pending.inputs_;
    ReadyVariant ready = variants.again(mask, pending.variant_->chosen, values);
    return start(std::move(ready), pending.random_, std::move(values), ignored);
  }
};

ModuleSession::ModuleSession(std::string_view bytes, std::shared_ptr<const void> owner,
                             std::vector<std::string> requires_grad, const SessionOptions& options,
                             std::span<const std::string> constant_outputs,
                             std::span<const std::string> steady_inputs) {
  Imported imported = import(onnx_io::read_model(bytes, std::move(owner)), options);
  const std::set<std::string_view> steady(steady_inputs.begin(), steady_inputs.end());
  for (const Value* v : imported.graph->inputs) {
    if (steady.count(v->name) != 0) imported.graph->steady_inputs.push_back(v);
  }
  impl_ = std::make_unique<Impl>(std::move(imported), std::move(requires_grad), options, constant_outputs);
}

ModuleSession::~ModuleSession() = default;

const std::vector<ValueInfo>& ModuleSession::inputs() const { return impl_->inputs; }
const std::vector<ValueInfo>& ModuleSession::outputs() const { return impl_->outputs; }
const std::vector<std::string>& ModuleSession::requires_grad() const { return impl_->requires_grad; }
const std::vector<bool>& ModuleSession::differentiable_outputs() const { return impl_->differentiable; }

std::vector<std::string> ModuleSession::depends_on(std::string_view output) const {
  const Value* v = impl_->plain->outputs[output_number(*impl_->plain, output, "depends_on")];
  return differentiable_inputs(*impl_->plain, v, impl_->requires_grad);
}

bool ModuleSession::is_random() const { return impl_->is_random; }

std::vector<RuntimeValue> ModuleSession::forward(std::vector<RuntimeValue> inputs, std::optional<std::uint64_t> seed) {
  impl_->check(inputs);
  const ReadyVariant ready = impl_->variants.ready_for(Mask(impl_->outputs.size(), false), inputs);
  CallScope call(impl_->options);
  RandomScope scope(impl_->run_for(seed));
  return ready.plan->executable->run(inputs);
}

std::shared_ptr<ModuleSession::Pending> ModuleSession::forward(std::vector<RuntimeValue> inputs,
                                                               std::vector<RuntimeValue>& outputs,
                                                               std::optional<std::uint64_t> seed) {
  impl_->check(inputs);
  ReadyVariant ready = impl_->variants.ready_for(impl_->expectation(), inputs);
  std::shared_ptr<Pending> pending = impl_->start(std::move(ready), impl_->run_for(seed), std::move(inputs), outputs);
  // The caller may change outputs, a function that kept one has no way to notice.
  for (std::size_t k : pending->variant_->later.kept) outputs[k] = copy_of(outputs[k].tensor);
  return pending;
}

std::vector<RuntimeValue> ModuleSession::backward(std::shared_ptr<Pending> pending,
                                                  std::span<const RuntimeValue> seeds) {
  const std::size_t count = impl_->outputs.size();
  if (seeds.size() != count) fail("gradients of outputs: got ", seeds.size(), ", expected one per output, ", count);
  Mask arrived;
  for (const RuntimeValue& seed : seeds) arrived.push_back(seed.is_tensor());
  const Mask given = impl_->given(std::move(arrived));
  for (std::size_t k = 0; k < count; ++k) {
    const Value& output = *impl_->plain->outputs[k];
    const Tensor& seed = seeds[k].tensor;
    if (!given[k] || (seed.dtype() == output.type.dtype && seed.dims() == pending->extents_[k])) continue;
    fail("gradient of output '", output.name, "': got ", name_of(seed.dtype()), to_string(seed.dims()), ", expected ",
         name_of(output.type.dtype), to_string(pending->extents_[k]), " as the output has");
  }
  if (!Impl::goes_on(*pending, given)) pending = impl_->restarted(*pending, given);
  std::vector<RuntimeValue> chosen;
  const ModuleVariant& variant = *pending->variant_;
  for (std::size_t k : variant.module.seeds) chosen.push_back(seeds[k]);
  CallScope call(impl_->options);
  RandomScope scope(pending->random_);
  if (pending.use_count() > 1) pending->inputs_ = pending->paused_->inputs();  // the caller may come again
  std::vector<RuntimeValue> found = pending->plan_->executable->resume(std::move(pending->paused_), chosen);
  // The caller adds to gradients in place.
  for (std::size_t k : variant.later.gradients) found[k] = copy_of(found[k].tensor);
  std::vector<RuntimeValue> gradients;
  gradients.reserve(variant.module.gradients.size());
  for (int index : variant.module.gradients) {
    gradients.push_back(index < 0 ? RuntimeValue() : std::move(found.at(static_cast<std::size_t>(index))));
  }
  return gradients;
}

bool ModuleSession::repeats(const Pending& pending, std::vector<bool> arrived) const {
  return !Impl::goes_on(pending, impl_->given(std::move(arrived)));
}

ModuleSession::Places ModuleSession::read_by_backward(const Pending& pending) {
  return {pending.variant_->later.inputs, pending.variant_->later.outputs};
}

ModuleSession::Places ModuleSession::read_by_backward() {
  const std::shared_ptr<ModuleVariant> variant = impl_->latest();
  return {variant->later.inputs, variant->later.outputs};
}

std::size_t ModuleSession::graph_number(const Pending& pending) { return pending.variant_->number; }

DataReport ModuleSession::densities() { return impl_->variants.densities(); }

DataReport ModuleSession::data_report() { return impl_->variants.data_report(impl_->expectation()); }

std::size_t ModuleSession::memory_excess() { return impl_->latest()->plan->excess(); }

std::string ModuleSession::training_model() {
  return impl_->written(*impl_->variants.differentiated(impl_->expectation(), nullptr).graph);
}

std::string ModuleSession::execution_model() { return impl_->written(*impl_->latest()->module.graph); }

std::string ModuleSession::graph_text() { return print(*impl_->latest()->plan->current()->graph); }

std::vector<std::string> ModuleSession::rewrites() {
  const std::shared_ptr<ModuleVariant> variant = impl_->latest();
  std::vector<std::string> lines = variant->passes.lines();
  for (const Report& report : variant->plan->current()->reports) lines.push_back(report.what);
  return lines;
}

std::vector<Report> ModuleSession::pass_reports() {
  const std::shared_ptr<ModuleVariant> variant = impl_->latest();
  std::vector<Report> reports = impl_->variants.refusals();
  const Reports& done = variant->passes.reports();
  reports.insert(reports.end(), done.begin(), done.end());
  const std::shared_ptr<ReadyPlan> plan = variant->plan->current();
  reports.insert(reports.end(), plan->reports.begin(), plan->reports.end());
  return reports;
}

std::vector<PassTime> ModuleSession::pass_times() {
  const std::shared_ptr<ModuleVariant> variant = impl_->latest();
  std::vector<PassTime> times = variant->passes.times();
  if (const auto plan = variant->plan->current(); !plan->reports.empty()) times.push_back({"recompute", plan->seconds});
  return times;
}

PlanReport ModuleSession::plan(const std::vector<RuntimeValue>& inputs) {
  impl_->check(inputs);
  CallScope call(impl_->options);
  return impl_->latest()->plan->ready_for(inputs)->executable->plan(inputs);
}

ArenaNeed ModuleSession::arena_need(const Sizes& sizes) {
  CallScope call(impl_->options);
  const std::shared_ptr<ReadyPlan> plan = impl_->latest()->plan->current();
  return backpass::arena_need(*plan->executable, impl_->plain->inputs, sizes);
}

std::vector<StepRecord> ModuleSession::take_profile() { return impl_->profiler.take(); }

}  // namespace backpass
