#include "backpass/session.hpp"

#include <algorithm>
#include <unordered_map>

#include "graph/clone.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/parameters.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "plan/lower.hpp"
#include "plan/program.hpp"
#include "runtime/arena_need.hpp"
#include "runtime/call_scope.hpp"
#include "runtime/executable.hpp"
#include "runtime/interpreter.hpp"
#include "runtime/options.hpp"
#include "runtime/unshare.hpp"
#include "runtime/value_info.hpp"
#include "support/printable.hpp"
#include "support/random_seed.hpp"

namespace backpass {

struct InferenceSession::Impl {
  SessionOptions options;
  std::int64_t opset;
  std::unique_ptr<Graph> graph;    // after passes: what execution_model() writes
  std::unique_ptr<Graph> lowered;  // what the program is made of; null for the reference
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  PassManager passes;
  std::vector<std::string> rewrites;
  Profiler profiler;
  RandomSource random;
  std::unique_ptr<Program> program;
  std::unique_ptr<Executable> executable;

  Impl(const onnx_io::ModelProto& model, const SessionOptions& o)
      : options(checked(o)), opset(opset_of(model)), passes({o.disabled_passes, o.verify_passes}, kEveryPass) {
    CallScope call(options);
    Import import = import_model(model);
    throw_if_any(import.problems, model.opening);
    graph = std::move(import.graph);
    for (const Value* v : graph->inputs) inputs.push_back(describe(*v));
    for (const Value* v : graph->outputs) outputs.push_back(describe(*v));
    for (std::size_t i = 0; i < outputs.size() && i < model.graph.output.size(); ++i) {
      outputs[i].name = model.graph.output[i].name;
    }
    if (options.reference) return;
    if (options.optimize) passes.run(*graph, Side::both);
    lowered = options.optimize ? lower(*graph, passes) : clone(*graph).graph;
    rewrites = passes.lines();
    program = make_program(*lowered);
    executable = std::make_unique<Executable>(*program, options.binding_cache, options.profile ? &profiler : nullptr);
  }

  std::vector<RuntimeValue> arrange(const Feeds& feeds) const {
    std::vector<RuntimeValue> values(graph->inputs.size());
    std::vector<bool> given(values.size(), false);
    std::string problems;
    for (const auto& feed : feeds) {
      auto it = std::find_if(inputs.begin(), inputs.end(), [&](const ValueInfo& i) { return i.name == feed.first; });
      if (it == inputs.end()) {
        problems += concat("\ninput ", printable(feed.first), " does not exist; the model takes ", names(inputs));
        continue;
      }
      auto index = static_cast<std::size_t>(it - inputs.begin());
      problems += mismatch(*graph->inputs[index], feed.second);
      values[index] = feed.second;
      given[index] = true;
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!given[i] && graph->inputs[i]->type.kind != Type::Kind::optional) {
        problems += concat("\ninput '", inputs[i].name, "' (", graph->inputs[i]->type.str(), ") is not fed");
      }
    }
    if (!problems.empty()) fail(problems.substr(1));
    return values;
  }

  /// The same for inputs given by position.
  void check_all(std::span<const RuntimeValue> values) const {
    if (values.size() != inputs.size()) fail("number of inputs: got ", values.size(), ", expected ", inputs.size());
    std::string problems;
    for (std::size_t i = 0; i < values.size(); ++i) problems += mismatch(*graph->inputs[i], values[i]);
    if (!problems.empty()) fail(problems.substr(1));
  }

  /// There is nothing to give up, so a share of what is needed is no limit here.
  void check_memory(std::span<const RuntimeValue> values) const {
    if (options.max_memory <= 1 || executable == nullptr) return;
    const std::size_t needed = at_most(executable->binding_for(values)).back()->arena_bytes();
    if (static_cast<double>(needed) <= options.max_memory) return;
    fail("max_memory: got ", static_cast<std::size_t>(options.max_memory), " bytes, expected at least ", needed,
         "; use a smaller batch, or allow as much");
  }

  static std::string names(const std::vector<ValueInfo>& infos) {
    std::string text;
    for (const ValueInfo& info : infos) text += (text.empty() ? "" : ", ") + printable(info.name);
    return text.empty() ? "none" : text;
  }

  /// By the reference executor, whose values are the feeds and the model's constants themselves where nothing computes.
  std::vector<RuntimeValue> interpreted(const std::vector<RuntimeValue>& values) const {
    std::vector<RuntimeValue> results = interpret(*graph, values);
    for (RuntimeValue& result : results) unshare(result, 1);
    return results;
  }

  std::vector<RuntimeValue> select(std::span<const std::string> wanted, std::vector<RuntimeValue> all) const {
    if (wanted.empty()) return all;
    std::vector<RuntimeValue> chosen;
    for (const std::string& name : wanted) {
      auto it = std::find_if(outputs.begin(), outputs.end(), [&](const ValueInfo& o) { return o.name == name; });
      if (it == outputs.end()) fail("output ", printable(name), " does not exist; the model gives ", names(outputs));
      chosen.push_back(all[static_cast<std::size_t>(it - outputs.begin())]);
    }
    return chosen;
  }
};

InferenceSession::InferenceSession(const std::filesystem::path& model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(onnx_io::read_model(model), options)) {}

InferenceSession::InferenceSession(std::string_view bytes, std::shared_ptr<const void> owner,
                                   const SessionOptions& options)
    : impl_(std::make_unique<Impl>(onnx_io::read_model(bytes, std::move(owner)), options)) {}

InferenceSession::~InferenceSession() = default;
InferenceSession::InferenceSession(InferenceSession&&) noexcept = default;
InferenceSession& InferenceSession::operator=(InferenceSession&&) noexcept = default;

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }
const std::vector<std::string>& InferenceSession::rewrites() const { return impl_->rewrites; }
const std::vector<Report>& InferenceSession::pass_reports() const { return impl_->passes.reports(); }
const std::vector<PassTime>& InferenceSession::pass_times() const { return impl_->passes.times(); }
std::string InferenceSession::graph_text() const {
  return print(impl_->lowered != nullptr ? *impl_->lowered : *impl_->graph);
}

std::string InferenceSession::execution_model() const {
  ExportOptions how;
  how.opset = std::max<std::int64_t>(how.opset, impl_->opset);
  for (const ValueInfo& output : impl_->outputs) how.output_names.push_back(output.name);
  return onnx_io::write_model(export_graph(*impl_->graph, how));
}

std::vector<RuntimeValue> InferenceSession::run(std::span<const std::string> output_names, const Feeds& feeds) const {
  std::vector<RuntimeValue> values = impl_->arrange(feeds);
  if (impl_->options.reference) check_symbols(impl_->graph->inputs, values);  // a binding checks them by itself
  CallScope call(impl_->options);
  impl_->check_memory(values);
  RandomScope random(impl_->random);
  std::vector<RuntimeValue> results =
      impl_->options.reference ? impl_->interpreted(values) : impl_->executable->run(values);
  return impl_->select(output_names, std::move(results));
}

void InferenceSession::run_into(std::span<const RuntimeValue> inputs, std::span<Tensor> outputs) const {
  if (impl_->options.reference)
    fail<Unsupported>("run_into needs a plan; it was turned off by SessionOptions::reference");
  impl_->check_all(inputs);
  CallScope call(impl_->options);
  impl_->check_memory(inputs);
  RandomScope random(impl_->random);
  impl_->executable->run_into(inputs, outputs);
}

PlanReport InferenceSession::plan(const Feeds& feeds) const {
  if (impl_->options.reference) fail<Unsupported>("there is no plan: it was turned off by SessionOptions::reference");
  CallScope call(impl_->options);
  return impl_->executable->plan(impl_->arrange(feeds));
}

ArenaNeed InferenceSession::arena_need(const Sizes& sizes) const {
  if (impl_->options.reference) fail<Unsupported>("there is no plan: it was turned off by SessionOptions::reference");
  CallScope call(impl_->options);
  return backpass::arena_need(*impl_->executable, impl_->graph->inputs, sizes);
}

std::vector<StepRecord> InferenceSession::take_profile() const { return impl_->profiler.take(); }

namespace {

template <class Read>
std::vector<Problem> check_model(Read&& read) {
  try {
    return import_model(read()).problems;
  } catch (const Unsupported& e) {
    return {{Problem::Kind::unsupported, "", "", e.what()}};
  } catch (const InvalidInput& e) {
    return {{Problem::Kind::invalid, "", "", e.what()}};
  }
}

}  // namespace

std::vector<Problem> check(const std::filesystem::path& model) {
  return check_model([&] { return onnx_io::read_model(model); });
}

std::vector<Problem> check(std::string_view bytes) {
  return check_model([&] { return onnx_io::read_model(bytes, nullptr); });
}

}  // namespace backpass
