#include "runtime/executable.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "graph/blame.hpp"
#include "graph/evaluate.hpp"
#include "runtime/step_cost.hpp"
#include "runtime/unshare.hpp"
#include "support/interruption.hpp"
#include "support/parallel.hpp"
#include "support/random_seed.hpp"

namespace backpass {

double Profiler::now_us() const {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count() - start_;
}

void Profiler::add(StepRecord record) {
  std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
}

std::vector<StepRecord> Profiler::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

/// What one run needs for itself. Kept between runs, so that steady state allocates nothing.
struct Executable::State {
  /// A binding whose operands have addresses.
  struct Part {
    std::shared_ptr<const Binding> binding;
    std::vector<void*> pointers;
    std::vector<std::pair<std::size_t, Place>> patches;  // pointers into inputs and output buffers
    std::vector<StepCost> costs;                         // per bound step, once a profile asks
  };

  std::vector<Tensor> blocks;  // of the arena
  std::vector<Part> parts;
  std::size_t current = 0;  // part
  std::vector<RuntimeValue> late;
  std::vector<void*> output_buffers;
  std::vector<Tensor> buffers;  // the same as tensors; only during a run

  Part& part() { return parts[current]; }
  const Binding& binding() const { return *parts[current].binding; }

  std::byte* at(const Place& place) {
    return blocks[static_cast<std::size_t>(place.index)].as<std::byte>() + place.offset;
  }

  void attach(std::shared_ptr<const Binding> binding) {
    current = static_cast<std::size_t>(binding->part);
    if (parts.size() <= current) parts.resize(current + 1);
    if (blocks.size() <= current) blocks.resize(current + 1);
    if (blocks[current].bytes() < binding->blocks[current] + 64) {
      const std::size_t bytes = std::max(binding->blocks[current], most_bytes()) + 64;
      for (std::size_t i = current; i < parts.size(); ++i) parts[i] = {};  // they point into it
      blocks[current] = Tensor();                                          // release first: two need not fit at once
      blocks[current] = new_block(*binding, bytes);
    }
    late.resize(static_cast<std::size_t>(binding->late_count));
    output_buffers.resize(binding->output_bytes.size(), nullptr);
    if (parts[current].binding == binding) return;
    for (std::size_t i = current; i < parts.size(); ++i) parts[i] = {};  // what came after another one
    parts[current].binding = std::move(binding);
    set_pointers();
  }

  bool in_arena(const void* p) const {
    const auto* byte = static_cast<const std::byte*>(p);
    for (const Tensor& block : blocks) {
      const auto* begin = block.as<std::byte>();
      if (byte >= begin && byte < begin + block.bytes()) return true;
    }
    return false;
  }

 private:
  /// Of the current part's block, where data decide sizes, as far as that can be known: it need not grow then.
  std::size_t most_bytes() const {
    if (current == 0) return 0;
    const auto most = at_most(parts.front().binding);
    return current < most.size() ? most[current]->blocks[current] : 0;
  }

  static Tensor new_block(const Binding& binding, std::size_t bytes) {
    try {
      return Tensor(DType::uint8, {static_cast<std::int64_t>(bytes)});
    } catch (const InvalidInput&) {
      fail_for_arena(binding);
    }
  }

  void set_pointers() {
    Part& p = part();
    const std::vector<Place>& places = p.binding->pointers;
    p.pointers.assign(places.size(), nullptr);
    p.patches.clear();
    for (std::size_t i = 0; i < places.size(); ++i) {
      switch (places[i].kind) {
        case Place::Kind::constant:
          p.pointers[i] = const_cast<void*>(places[i].address);
          break;  // NOLINT: read only
        case Place::Kind::arena:
          p.pointers[i] = at(places[i]);
          break;
        case Place::Kind::input:
        case Place::Kind::output:
          p.patches.emplace_back(i, places[i]);
          break;
        default:
          break;
      }
    }
  }
};

Executable::Executable(const Program& program, int binding_cache, Profiler* profiler,
                       std::shared_ptr<BufferPool> results)
    : program_(program),
      profiler_(profiler),
      bindings_(binding_cache),
      results_(results != nullptr ? std::move(results) : std::make_shared<BufferPool>()) {
  for (const Step& step : program.steps) {
    children_.emplace_back();
    for (const SubProgram& s : step.subprograms) {
      children_.back().push_back(std::make_unique<Executable>(*s.program, binding_cache, profiler));
    }
  }
}

Executable::~Executable() = default;

std::shared_ptr<const Binding> Executable::binding_for(std::span<const RuntimeValue> inputs) {
  return bindings_.get(inputs, [&] { return make_binding(program_, inputs, bindings_.capacity()); });
}

PlanReport Executable::plan(std::span<const RuntimeValue> inputs) {
  return describe_plan(at_most(binding_for(inputs)));
}

std::unique_ptr<Executable::State> Executable::take_state() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<State>();
  std::unique_ptr<State> state = std::move(idle_.back());
  idle_.pop_back();
  return state;
}

void Executable::give_back(std::unique_ptr<State> state) {
  for (RuntimeValue& v : state->late) v = {};
  state->buffers.clear();
  std::lock_guard lock(mutex_);
  if (!state->parts.empty() && state->binding().rest == nullptr) last_run_ = state->part().binding;
  idle_.push_back(std::move(state));
}

std::shared_ptr<const Binding> Executable::last_run() {
  std::lock_guard lock(mutex_);
  return last_run_;
}

void Executable::release_memory() {
  std::lock_guard lock(mutex_);
  idle_.clear();
}

namespace {

bool is_given(std::span<const Tensor> wanted, std::size_t k) {
  return k < wanted.size() && wanted[k].dtype() != DType::undefined;
}

void check_fits(std::size_t k, const Tensor& given, DType dtype, const Dims& dims) {
  if (given.dtype() == dtype && given.dims() == dims) return;
  fail("output ", k, ": got ", name_of(given.dtype()), to_string(given.dims()), ", expected ", name_of(dtype),
       to_string(dims));
}

}  // namespace

/// For those outputs that the current part computes: what the caller gave, else memory of their own. At a pause, of
/// those that it hands out or are written before it, the first `given` outputs being handed out; or of the others.
void Executable::add_buffers(State& state, std::size_t given, bool is_resumed, const Targets& targets) {
  const Binding& binding = state.binding();
  state.buffers.resize(binding.output_bytes.size());
  for (std::size_t k = 0; k < binding.outputs.size(); ++k) {
    const BoundOutput& output = binding.outputs[k];
    const bool is_later = binding.pause && k >= given && !output.is_early;
    if (output.part != binding.part || is_later != is_resumed) continue;
    if (output.buffer < 0) {
      if (!targets.are_all_planned || output.is_input) continue;
      fail<Unsupported>("output ", k, " is not planned: it depends on data or is not computed");
    }
    const BoundValue& v = binding.values[static_cast<std::size_t>(output.value)];
    void*& target = state.output_buffers[static_cast<std::size_t>(output.buffer)];
    if (is_given(targets.wanted, k)) {
      check_fits(k, targets.wanted[k], v.dtype, v.dims());
      target = const_cast<void*>(targets.wanted[k].data());  // NOLINT: given to be written to
      continue;
    }
    const Node* producer = program_.values[static_cast<std::size_t>(output.value)]->producer;
    ensure(producer != nullptr, "an output buffer that no step fills");
    Tensor& buffer = state.buffers[static_cast<std::size_t>(output.buffer)];
    buffer = blaming(*producer, [&] {
      return targets.pool != nullptr ? targets.pool->take(v.dtype, v.dims()) : Tensor(v.dtype, v.dims());
    });
    target = buffer.mutable_data();
  }
}

/// Makes a binding the current part. Of the outputs that come after a pause in it only the first `outputs` are wanted.
void Executable::enter(State& state, std::shared_ptr<const Binding> binding, const Targets& targets,
                       std::size_t outputs) {
  state.attach(std::move(binding));
  add_buffers(state, outputs, false, targets);
}

/// The rest of the program, now that the current part has found the sizes it depends on.
std::shared_ptr<const Binding> Executable::next(const State& state) const {
  const Binding& binding = state.binding();
  std::vector<RuntimeValue> found;
  for (int v : binding.found) {
    const Place& place = binding.values[static_cast<std::size_t>(v)].place;
    found.push_back(place.kind == Place::Kind::late ? state.late[static_cast<std::size_t>(place.index)]
                                                    : RuntimeValue());
  }
  return rest_of(binding, found);
}

bool Executable::run_to_pause(State& state, std::span<const RuntimeValue> inputs, const Targets& targets,
                              std::size_t outputs) {
  enter(state, binding_for(inputs), targets, outputs);
  const Binding& binding = state.binding();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (binding.late_inputs[i] >= 0) state.late[static_cast<std::size_t>(binding.late_inputs[i])] = inputs[i];
  }
  while (true) {
    execute(state, inputs, 0, state.binding().pause.value_or(state.binding().steps.size()));
    if (state.binding().pause) return true;
    if (state.binding().rest == nullptr) return false;
    enter(state, next(state), targets, outputs);
  }
}

void Executable::run_to_end(State& state, std::span<const RuntimeValue> inputs, const Targets& targets) {
  execute(state, inputs, *state.binding().pause + 1, state.binding().steps.size());
  while (state.binding().rest != nullptr) {
    enter(state, next(state), targets, 0);
    execute(state, inputs, 0, state.binding().steps.size());
  }
}

/// Whoever runs a program as a whole has nothing to give to a pause: running it as an ordinary step says so.
void Executable::run_all(State& state, std::span<const RuntimeValue> inputs, const Targets& targets) {
  if (run_to_pause(state, inputs, targets, program_.outputs.size())) {
    const Binding& binding = state.binding();
    run_late_step(state, binding, binding.steps[*binding.pause], inputs);
  }
}

std::vector<RuntimeValue> Executable::run(std::span<const RuntimeValue> inputs, std::span<const Tensor> wanted) {
  std::unique_ptr<State> state = take_state();
  run_all(*state, inputs, {.wanted = wanted});
  const Binding& binding = state->binding();
  std::vector<RuntimeValue> results;
  for (std::size_t k = 0; k < binding.outputs.size(); ++k) {
    if (is_given(wanted, k) && binding.outputs[k].buffer >= 0) {
      results.emplace_back(wanted[k]);
      continue;
    }
    results.push_back(collect(*state, k, inputs));
    if (!is_given(wanted, k)) continue;
    const Tensor& result = results[k].tensor;
    check_fits(k, wanted[k], result.dtype(), result.dims());
    Tensor to = wanted[k];
    if (result.bytes() > 0) std::memcpy(to.mutable_data(), result.data(), result.bytes());
    results[k] = to;
  }
  give_back(std::move(state));
  return results;
}

void Executable::run_into(std::span<const RuntimeValue> inputs, std::span<Tensor> outputs) {
  if (outputs.size() != program_.outputs.size()) {
    fail("number of outputs: got ", outputs.size(), ", expected ", program_.outputs.size());
  }
  std::unique_ptr<State> state = take_state();
  run_all(*state, inputs, {.wanted = outputs, .are_all_planned = true});
  give_back(std::move(state));
}

Executable::Paused::Paused(Executable& owner, std::vector<RuntimeValue> inputs)
    : owner_(owner), state_(owner.take_state()), inputs_(std::move(inputs)) {}

Executable::Paused::~Paused() { owner_.give_back(std::move(state_)); }

std::unique_ptr<Executable::Paused> Executable::start(std::vector<RuntimeValue> inputs, std::size_t count,
                                                      std::vector<RuntimeValue>& results) {
  results_->end_run();  // here, since a run need not be resumed
  auto paused = std::make_unique<Paused>(*this, std::move(inputs));
  paused->given_ = count;
  // Without a pause all is computed now, what is asked for later included.
  paused->is_waiting_ = run_to_pause(*paused->state_, paused->inputs_, {.pool = results_.get()}, count);
  for (std::size_t k = 0; k < count; ++k) results.push_back(collect(*paused->state_, k, paused->inputs_));
  return paused;
}

std::vector<RuntimeValue> Executable::resume(std::unique_ptr<Paused> paused, std::span<const RuntimeValue> seeds) {
  State& state = *paused->state_;
  if (paused->is_waiting_) {
    const Targets targets{.pool = results_.get()};
    add_buffers(state, paused->given_, true, targets);
    const std::vector<int>& late_seeds = state.binding().late_seeds;
    ensure(seeds.size() == late_seeds.size(), "resume: number of seeds");
    paused->inputs_.insert(paused->inputs_.end(), seeds.begin(), seeds.end());
    for (std::size_t k = 0; k < seeds.size(); ++k) {
      if (late_seeds[k] >= 0) state.late[static_cast<std::size_t>(late_seeds[k])] = seeds[k];
    }
    run_to_end(state, paused->inputs_, targets);
  }
  std::vector<RuntimeValue> results;
  results.reserve(program_.outputs.size() - paused->given_);
  for (std::size_t k = paused->given_; k < program_.outputs.size(); ++k) {
    results.push_back(collect(state, k, paused->inputs_));
  }
  return results;
}

/// Steps [first, last) of the current part.
void Executable::execute(State& state, std::span<const RuntimeValue> inputs, std::size_t first, std::size_t last) {
  State::Part& part = state.part();
  const Binding& binding = *part.binding;
  for (const auto& [index, place] : part.patches) {
    std::byte* start = nullptr;
    if (place.kind == Place::Kind::input) {
      if (static_cast<std::size_t>(place.index) >= inputs.size()) continue;  // comes after the pause
      const void* data = inputs[static_cast<std::size_t>(place.index)].tensor.data();
      start = static_cast<std::byte*>(const_cast<void*>(data));  // NOLINT: read only
    } else {
      start = static_cast<std::byte*>(state.output_buffers[static_cast<std::size_t>(place.index)]);
    }
    part.pointers[index] = start + place.offset;
  }
  for (std::size_t i = first; i < last; ++i) {
    const BoundStep& step = binding.steps[i];
    double start = profiler_ == nullptr ? 0 : profiler_->now_us();
    if (step.kernel) {
      void** pointers = part.pointers.data() + step.first_pointer;
      for (std::size_t p : step.late_pointers) {
        const Place& place = binding.pointers[step.first_pointer + p];
        Tensor& t = state.late[static_cast<std::size_t>(place.index)].tensor;
        pointers[p] = t.as<std::byte>() + place.offset;
      }
      std::byte* scratch = step.scratch_bytes > 0 ? state.at(step.scratch) : nullptr;
      const KernelArgs args{const_cast<const void* const*>(pointers), pointers + step.input_count, scratch};
      blaming(*program_.steps[static_cast<std::size_t>(step.step)].node, [&] {
        check_interruption();
        step.kernel(args);
      });
    } else {
      run_late_step(state, binding, step, inputs);
    }
    if (profiler_ != nullptr) record(state, i, start);
    for (int late : step.release) state.late[static_cast<std::size_t>(late)] = {};
  }
}

namespace {

/// A body that never ran does not know the extents of what it would have made.
bool is_empty_of(const BoundValue& expected, const RuntimeValue& found) {
  return found.is_tensor() && found.tensor.size() == 0 && element_count(expected.dims()) == 0 &&
         found.tensor.dims().size() == expected.dims().size();
}

template <class State>
const void* address_of(const Place& place, State& state, std::span<const RuntimeValue> inputs) {
  switch (place.kind) {
    case Place::Kind::constant:
      return place.address;
    case Place::Kind::arena:
      return state.at(place);
    case Place::Kind::input:
      return inputs[static_cast<std::size_t>(place.index)].tensor.as<std::byte>() + place.offset;
    case Place::Kind::output:
      return static_cast<std::byte*>(state.output_buffers[static_cast<std::size_t>(place.index)]) + place.offset;
    default:
      return nullptr;
  }
}

}  // namespace

void Executable::run_late_step(State& state, const Binding& binding, const BoundStep& bound,
                               std::span<const RuntimeValue> inputs) {
  const Step& step = program_.steps[static_cast<std::size_t>(bound.step)];
  auto read = [&](int v) -> RuntimeValue {
    if (v < 0) return {};
    const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
    if (value.constant != nullptr) return *value.constant;
    if (value.place.kind == Place::Kind::late) {
      RuntimeValue found = state.late[static_cast<std::size_t>(value.place.index)];
      if (found.is_tensor() && value.is_known && found.tensor.dims() != value.dims()) {
        found.tensor = found.tensor.reshaped(value.dims());  // a view of it
      }
      return found;
    }
    ensure(value.is_known, shown(*step.node), " reads a value without a place");
    const void* data = address_of(value.place, state, inputs);
    std::shared_ptr<const void> owner;
    if (value.place.kind == Place::Kind::input)
      owner = inputs[static_cast<std::size_t>(value.place.index)].tensor.owner();
    return Tensor(value.dtype, value.dims(), data, std::move(owner));
  };
  std::vector<RuntimeValue> arguments;
  for (int v : step.inputs) arguments.push_back(read(v));
  SubgraphRunner runner = [&](std::string_view attribute, std::vector<RuntimeValue> values) {
    for (std::size_t k = 0; k < step.subprograms.size(); ++k) {
      if (step.subprograms[k].attribute != attribute) continue;
      for (int v : step.subprograms[k].captured) values.push_back(read(v));
      check_interruption();  // a body need not have steps
      SubgraphScope scope;
      return children_[static_cast<std::size_t>(bound.step)][k]->run(values);
    }
    fail<InternalBug>(step.node->label(), " has no subgraph '", attribute, "'");
  };
  std::vector<RuntimeValue> results = evaluate_node(*step.node, std::move(arguments), runner);

  // An operator may pass an input on; what lives in the arena must not escape with it.
  auto detach = [&](auto&& self, RuntimeValue& v) -> void {
    if (v.is_tensor() && (state.in_arena(v.tensor.data()) || v.tensor.owner() == nullptr)) v.tensor = copy_of(v.tensor);
    if (v.kind != RuntimeValue::Kind::sequence) return;
    std::vector<RuntimeValue> items = *v.items;
    for (RuntimeValue& item : items) self(self, item);
    v = RuntimeValue::sequence(std::move(items));
  };
  for (std::size_t k = 0; k < step.outputs.size(); ++k) {
    if (step.outputs[k] < 0) continue;
    const BoundValue& expected = binding.values[static_cast<std::size_t>(step.outputs[k])];
    const bool has_place = bound.late_outputs[k] < 0;
    if (!has_place) detach(detach, results[k]);
    if (expected.is_known && is_empty_of(expected, results[k])) {
      results[k].tensor = results[k].tensor.reshaped(expected.dims());
    }
    if (expected.is_known && (!results[k].is_tensor() || results[k].tensor.dims() != expected.dims() ||
                              results[k].tensor.dtype() != expected.dtype)) {
      fail<InternalBug>(step.node->label(), " output ", k, " was planned as ", name_of(expected.dtype),
                        to_string(expected.dims()), " but came out as ", type_of(results[k]).str());
    }
    if (has_place) {
      const auto* place = static_cast<const std::byte*>(address_of(expected.place, state, inputs));
      std::memmove(const_cast<std::byte*>(place), results[k].tensor.data(), expected.bytes());  // NOLINT: its own
    } else {
      state.late[static_cast<std::size_t>(bound.late_outputs[k])] = std::move(results[k]);
    }
  }
}

RuntimeValue Executable::collect(State& state, std::size_t k, std::span<const RuntimeValue> inputs) {
  const Binding& binding = state.binding();
  const BoundOutput& output = binding.outputs[k];
  if (output.buffer >= 0) return state.buffers[static_cast<std::size_t>(output.buffer)];
  const BoundValue& v = binding.values[static_cast<std::size_t>(output.value)];
  if (output.is_input) return inputs[static_cast<std::size_t>(v.place.index)];
  if (v.constant != nullptr) return copy_of(*v.constant);
  if (v.place.kind == Place::Kind::late) {
    RuntimeValue found = state.late[static_cast<std::size_t>(v.place.index)];
    if (found.is_tensor() && v.is_known && found.tensor.dims() != v.dims()) {
      found.tensor = found.tensor.reshaped(v.dims());
    }
    constexpr long kHolders = 2;  // `found` and the slot it came from
    unshare(found, kHolders);
    return found;
  }
  ensure(v.is_known, "output without a place");
  return copy_of(Tensor(v.dtype, v.dims(), address_of(v.place, state, inputs), nullptr));
}

void Executable::record(State& state, std::size_t step, double start) {
  const double end = profiler_->now_us();
  State::Part& part = state.part();
  if (part.costs.empty()) part.costs = step_costs(*part.binding);
  const Node& node = *program_.steps[static_cast<std::size_t>(part.binding->steps[step].step)].node;
  const StepCost& cost = part.costs[step];
  profiler_->add({node.name, node.op, cost.shapes, start, end - start, cost.bytes, cost.flops, threads_here()});
}

}  // namespace backpass
