#include "runtime/executable.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "graph/blame.hpp"
#include "graph/evaluate.hpp"
#include "runtime/unshare.hpp"
#include "support/interruption.hpp"
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
  Tensor arena;
  std::shared_ptr<const Binding> attached;
  std::vector<void*> pointers;
  std::vector<std::pair<std::size_t, Place>> patches;  // pointers into inputs and output buffers
  std::vector<RuntimeValue> late;
  std::vector<void*> output_buffers;

  std::byte* base() { return arena.as<std::byte>(); }

  void attach(const std::shared_ptr<const Binding>& binding) {
    if (attached == binding) return;
    if (arena.bytes() < binding->arena_bytes + 64) {
      arena = Tensor();  // release first: two arenas need not fit at once
      allocate_arena(*binding);
    }
    pointers.assign(binding->pointers.size(), nullptr);
    patches.clear();
    for (std::size_t i = 0; i < binding->pointers.size(); ++i) {
      const Place& p = binding->pointers[i];
      switch (p.kind) {
        case Place::Kind::constant:
          pointers[i] = const_cast<void*>(p.address);
          break;  // NOLINT: read only
        case Place::Kind::arena:
          pointers[i] = base() + p.offset;
          break;
        case Place::Kind::input:
        case Place::Kind::output:
          patches.emplace_back(i, p);
          break;
        default:
          break;
      }
    }
    late.assign(static_cast<std::size_t>(binding->late_count), {});
    output_buffers.assign(binding->output_bytes.size(), nullptr);
    attached = binding;
  }

  void allocate_arena(const Binding& binding) {
    try {
      arena = Tensor(DType::uint8, {static_cast<std::int64_t>(binding.arena_bytes + 64)});
    } catch (const InvalidInput&) {
      fail_for_arena(binding);
    }
  }

  bool in_arena(const void* p) const {
    const auto* byte = static_cast<const std::byte*>(p);
    const auto* begin = arena.as<std::byte>();
    return byte >= begin && byte < begin + arena.bytes();
  }
};

namespace {

std::vector<std::int64_t> key_of(std::span<const RuntimeValue> inputs) {
  std::vector<std::int64_t> key;
  for (const RuntimeValue& v : inputs) {
    key.push_back(static_cast<std::int64_t>(v.kind) * 64 + static_cast<std::int64_t>(v.tensor.dtype()));
    if (!v.is_tensor()) continue;
    key.push_back(v.tensor.rank());
    key.insert(key.end(), v.tensor.dims().begin(), v.tensor.dims().end());
  }
  return key;
}

bool matches(const std::vector<std::int64_t>& key, std::span<const RuntimeValue> inputs) {
  std::size_t i = 0;
  for (const RuntimeValue& v : inputs) {
    std::int64_t tag = static_cast<std::int64_t>(v.kind) * 64 + static_cast<std::int64_t>(v.tensor.dtype());
    if (i >= key.size() || key[i++] != tag) return false;
    if (!v.is_tensor()) continue;
    if (key[i++] != v.tensor.rank()) return false;
    for (std::int64_t d : v.tensor.dims()) {
      if (key[i++] != d) return false;
    }
  }
  return i == key.size();
}

}  // namespace

Executable::Executable(const Program& program, int binding_cache, Profiler* profiler)
    : program_(program), binding_cache_(std::max(1, binding_cache)), profiler_(profiler) {
  for (const Step& step : program.steps) {
    children_.emplace_back();
    for (const SubProgram& s : step.subprograms) {
      children_.back().push_back(std::make_unique<Executable>(*s.program, binding_cache, profiler));
    }
  }
}

Executable::~Executable() = default;

/// To be called with the lock held.
std::shared_ptr<const Binding> Executable::find_binding(std::span<const RuntimeValue> inputs) {
  for (auto it = bindings_.begin(); it != bindings_.end(); ++it) {
    if (!matches(it->key, inputs)) continue;
    bindings_.splice(bindings_.begin(), bindings_, it);
    return bindings_.front().binding;
  }
  return nullptr;
}

std::shared_ptr<const Binding> Executable::binding_for(std::span<const RuntimeValue> inputs) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = find_binding(inputs)) return found;
  }
  // Without the lock: rules of users are asked, who may be waiting for somebody that waits for it.
  std::shared_ptr<const Binding> binding = make_binding(program_, inputs);
  std::lock_guard lock(mutex_);
  if (auto found = find_binding(inputs)) return found;
  bindings_.push_front({key_of(inputs), binding});
  if (bindings_.size() > static_cast<std::size_t>(binding_cache_)) bindings_.pop_back();
  return binding;
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
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(state));
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

/// For outputs [first, last): what the caller gave, else memory of their own.
void Executable::add_buffers(State& state, const Binding& binding, std::size_t first, std::size_t last,
                             std::span<const Tensor> wanted, BufferPool* pool, std::vector<Tensor>& buffers) {
  for (std::size_t k = first; k < last; ++k) {
    const BoundOutput& output = binding.outputs[k];
    if (output.buffer < 0) continue;
    const BoundValue& v = binding.values[static_cast<std::size_t>(output.value)];
    if (is_given(wanted, k)) {
      check_fits(k, wanted[k], v.dtype, v.dims());
      buffers.push_back(wanted[k]);
    } else {
      const Node* producer = program_.values[static_cast<std::size_t>(output.value)]->producer;
      ensure(producer != nullptr, "an output buffer that no step fills");
      buffers.push_back(blaming(
          *producer, [&] { return pool != nullptr ? pool->take(v.dtype, v.dims()) : Tensor(v.dtype, v.dims()); }));
    }
    state.output_buffers[static_cast<std::size_t>(output.buffer)] = buffers.back().mutable_data();
  }
}

std::vector<RuntimeValue> Executable::run(std::span<const RuntimeValue> inputs, std::span<const Tensor> wanted) {
  std::shared_ptr<const Binding> binding = binding_for(inputs);
  std::unique_ptr<State> state = take_state();
  state->attach(binding);
  std::vector<Tensor> buffers;
  add_buffers(*state, *binding, 0, binding->outputs.size(), wanted, nullptr, buffers);
  execute(*state, *binding, inputs);
  std::vector<RuntimeValue> results;
  for (std::size_t k = 0; k < binding->outputs.size(); ++k) {
    results.push_back(collect(*state, *binding, binding->outputs[k], inputs, buffers));
    if (!is_given(wanted, k) || binding->outputs[k].buffer >= 0) continue;
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
  std::shared_ptr<const Binding> binding = binding_for(inputs);
  if (outputs.size() != binding->outputs.size()) {
    fail("number of outputs: got ", outputs.size(), ", expected ", binding->outputs.size());
  }
  std::unique_ptr<State> state = take_state();
  state->attach(binding);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const BoundOutput& output = binding->outputs[i];
    const BoundValue& v = binding->values[static_cast<std::size_t>(output.value)];
    if (output.buffer < 0) fail<Unsupported>("output ", i, " is not planned: it depends on data or is not computed");
    if (outputs[i].dtype() != v.dtype || outputs[i].dims() != v.dims()) {
      fail("output ", i, ": got ", to_string(outputs[i].dims()), ", expected ", name_of(v.dtype), to_string(v.dims()));
    }
    state->output_buffers[static_cast<std::size_t>(output.buffer)] = outputs[i].mutable_data();
  }
  execute(*state, *binding, inputs);
  give_back(std::move(state));
}

Executable::Paused::Paused(Executable& owner, std::vector<RuntimeValue> inputs)
    : owner_(owner), binding_(owner.binding_for(inputs)), state_(owner.take_state()), inputs_(std::move(inputs)) {}

Executable::Paused::~Paused() { owner_.give_back(std::move(state_)); }

std::unique_ptr<Executable::Paused> Executable::start(std::vector<RuntimeValue> inputs, std::size_t count,
                                                      std::vector<RuntimeValue>& results) {
  results_.end_run();  // here, since a run need not be resumed
  auto paused = std::make_unique<Paused>(*this, std::move(inputs));
  const Binding& binding = *paused->binding_;
  State& state = *paused->state_;
  state.attach(paused->binding_);
  paused->given_ = count;
  // Without a pause all is computed now, what is asked for later included.
  add_buffers(state, binding, 0, binding.pause ? count : binding.outputs.size(), {}, &results_, paused->buffers_);
  set_late_inputs(state, binding, paused->inputs_);
  execute(state, binding, paused->inputs_, 0, binding.pause.value_or(binding.steps.size()));
  for (std::size_t k = 0; k < count; ++k) {
    results.push_back(collect(state, binding, binding.outputs[k], paused->inputs_, paused->buffers_));
  }
  return paused;
}

std::vector<RuntimeValue> Executable::resume(std::unique_ptr<Paused> paused, std::span<const RuntimeValue> seeds) {
  const Binding& binding = *paused->binding_;
  State& state = *paused->state_;
  if (binding.pause) {
    add_buffers(state, binding, paused->given_, binding.outputs.size(), {}, &results_, paused->buffers_);
    ensure(seeds.size() == binding.late_seeds.size(), "resume: number of seeds");
    paused->inputs_.insert(paused->inputs_.end(), seeds.begin(), seeds.end());
    for (std::size_t k = 0; k < seeds.size(); ++k) {
      if (binding.late_seeds[k] >= 0) state.late[static_cast<std::size_t>(binding.late_seeds[k])] = seeds[k];
    }
    execute(state, binding, paused->inputs_, *binding.pause + 1, binding.steps.size());
  }
  std::vector<RuntimeValue> results;
  for (std::size_t k = paused->given_; k < binding.outputs.size(); ++k) {
    results.push_back(collect(state, binding, binding.outputs[k], paused->inputs_, paused->buffers_));
  }
  return results;
}

void Executable::set_late_inputs(State& state, const Binding& binding, std::span<const RuntimeValue> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (binding.late_inputs[i] >= 0) state.late[static_cast<std::size_t>(binding.late_inputs[i])] = inputs[i];
  }
}

void Executable::execute(State& state, const Binding& binding, std::span<const RuntimeValue> inputs) {
  set_late_inputs(state, binding, inputs);
  execute(state, binding, inputs, 0, binding.steps.size());
}

void Executable::execute(State& state, const Binding& binding, std::span<const RuntimeValue> inputs, std::size_t first,
                         std::size_t last) {
  for (const auto& [index, place] : state.patches) {
    std::byte* start = nullptr;
    if (place.kind == Place::Kind::input) {
      if (static_cast<std::size_t>(place.index) >= inputs.size()) continue;  // comes after the pause
      const void* data = inputs[static_cast<std::size_t>(place.index)].tensor.data();
      start = static_cast<std::byte*>(const_cast<void*>(data));  // NOLINT: read only
    } else {
      start = static_cast<std::byte*>(state.output_buffers[static_cast<std::size_t>(place.index)]);
    }
    state.pointers[index] = start + place.offset;
  }
  for (std::size_t i = first; i < last; ++i) {
    const BoundStep& step = binding.steps[i];
    double start = profiler_ == nullptr ? 0 : profiler_->now_us();
    if (step.kernel) {
      void** pointers = state.pointers.data() + step.first_pointer;
      for (std::size_t p : step.late_pointers) {
        const Place& place = binding.pointers[step.first_pointer + p];
        Tensor& t = state.late[static_cast<std::size_t>(place.index)].tensor;
        pointers[p] = t.as<std::byte>() + place.offset;
      }
      const KernelArgs args{const_cast<const void* const*>(pointers), pointers + step.input_count,
                            state.base() + step.scratch_offset};
      blaming(*program_.steps[static_cast<std::size_t>(step.step)].node, [&] {
        check_interruption();
        step.kernel(args);
      });
    } else {
      run_late_step(state, binding, step, inputs);
    }
    if (profiler_ != nullptr) record(binding, step, start);
    for (int late : step.release) state.late[static_cast<std::size_t>(late)] = {};
  }
}

namespace {

const void* address_of(const Place& place, std::byte* arena, const std::vector<void*>& output_buffers,
                       std::span<const RuntimeValue> inputs) {
  switch (place.kind) {
    case Place::Kind::constant:
      return place.address;
    case Place::Kind::arena:
      return arena + place.offset;
    case Place::Kind::input:
      return inputs[static_cast<std::size_t>(place.index)].tensor.as<std::byte>() + place.offset;
    case Place::Kind::output:
      return static_cast<std::byte*>(output_buffers[static_cast<std::size_t>(place.index)]) + place.offset;
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
    const void* data = address_of(value.place, state.base(), state.output_buffers, inputs);
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
    if (bound.late_outputs[k] < 0) continue;
    detach(detach, results[k]);
    const BoundValue& expected = binding.values[static_cast<std::size_t>(step.outputs[k])];
    if (expected.is_known && (!results[k].is_tensor() || results[k].tensor.dims() != expected.dims() ||
                              results[k].tensor.dtype() != expected.dtype)) {
      fail<InternalBug>(step.node->label(), " output ", k, " was planned as ", name_of(expected.dtype),
                        to_string(expected.dims()), " but came out as ", type_of(results[k]).str());
    }
    state.late[static_cast<std::size_t>(bound.late_outputs[k])] = std::move(results[k]);
  }
}

RuntimeValue Executable::collect(State& state, const Binding& binding, const BoundOutput& output,
                                 std::span<const RuntimeValue> inputs, std::span<const Tensor> buffers) {
  if (output.buffer >= 0) return buffers[static_cast<std::size_t>(output.buffer)];
  const BoundValue& v = binding.values[static_cast<std::size_t>(output.value)];
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
  return copy_of(Tensor(v.dtype, v.dims(), address_of(v.place, state.base(), state.output_buffers, inputs), nullptr));
}

void Executable::record(const Binding& binding, const BoundStep& bound, double start) {
  const Step& step = program_.steps[static_cast<std::size_t>(bound.step)];
  StepRecord r{step.node->name, step.node->op, "", start, profiler_->now_us() - start, 0};
  auto add = [&](int v) {
    if (v < 0) return;
    const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
    if (!r.shapes.empty() && r.shapes.back() != ' ') r.shapes += ", ";
    r.shapes += value.is_known ? std::string(name_of(value.dtype)) + to_string(value.dims()) : "?";
    if (value.is_known) r.bytes += static_cast<std::int64_t>(value.bytes());
  };
  for (int v : step.inputs) add(v);
  r.shapes += " -> ";
  for (int v : step.outputs) add(v);
  profiler_->add(std::move(r));
}

}  // namespace backpass
