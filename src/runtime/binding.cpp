#include "runtime/binding.hpp"

#include <algorithm>

#include "graph/blame.hpp"
#include "graph/evaluate.hpp"
#include "plan/arena.hpp"
#include "runtime/infer_program.hpp"

namespace backpass {
namespace {

/// The second half of binding: kernels, and where values lie.
class Binder {
 public:
  Binder(const Program& program, std::vector<Fate> fates, Binding& binding)
      : program_(program),
        aliases_(program.aliases),
        fates_(std::move(fates)),
        binding_(binding),
        facts_(program.values.size()),
        storage_of_memory_(aliases_.memories.size()),
        storages_(aliases_.memories.size()) {
    std::iota(storage_of_memory_.begin(), storage_of_memory_.end(), 0);
  }

  void run(std::span<const RuntimeValue> inputs) {
    bind_inputs(inputs);
    for (int v : program_.outputs) binding_.outputs.emplace_back().value = v;
    for (const Value* v : program_.values) {
      if (v->constant) binding_.report.constant_bytes += static_cast<std::int64_t>(v->constant->bytes());
    }
    bind();
  }

  /// Goes on where another binding ended.
  void run_after(const Binding& before) {
    binding_.part = before.part + 1;
    binding_.outputs = before.outputs;
    binding_.output_bytes = before.output_bytes;
    binding_.late_count = before.late_count;
    binding_.blocks = before.blocks;
    binding_.report = before.report;
    facts_ = before.handover.facts;
    storage_of_memory_ = before.handover.storage_of_memory;
    storages_ = before.handover.storages;
    late_last_ = before.handover.late_last;
    bind();
  }

 private:
  using Fact = Handover::Fact;

  bool is_last() const { return binding_.end == static_cast<int>(program_.steps.size()); }

  void bind() {
    binding_.steps.reserve(static_cast<std::size_t>(binding_.end - binding_.first));
    for (int i = binding_.first; i < binding_.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (fates_[at] == Fate::known || !aliases_.is_needed[at]) continue;
      blaming(*program_.steps[at].node, [&] { bind_step(i); });
    }
    keep_found_values();
    bind_outputs();
    lay_out();
    resolve();
    if (is_last()) return;
    binding_.handover.facts = std::move(facts_);
    binding_.handover.storage_of_memory = std::move(storage_of_memory_);
    binding_.handover.storages = std::move(storages_);
    binding_.handover.late_last = std::move(late_last_);
  }

  /// The rest of the program is bound by their extents, even if no step reads their contents.
  void keep_found_values() {
    for (int v : binding_.found) {
      const int late = fact(v).late;
      if (late < 0) continue;
      int& last = late_last_[static_cast<std::size_t>(late)];
      last = std::max(last, binding_.end);
    }
  }

  BoundValue& bound(int v) { return binding_.values[static_cast<std::size_t>(v)]; }
  Fact& fact(int v) { return facts_[static_cast<std::size_t>(v)]; }

  Storage& storage_of(int v) {
    return storages_[static_cast<std::size_t>(storage_of_memory_[static_cast<std::size_t>(memory(v))])];
  }
  int memory(int v) const { return aliases_.memory[static_cast<std::size_t>(v)]; }
  /// Whether the memory was first written by a step of this binding.
  bool is_own(const Storage& storage) const { return storage.first >= binding_.first; }

  int new_late(int last) {
    late_last_.push_back(last);
    return binding_.late_count++;
  }

  void bind_inputs(std::span<const RuntimeValue> inputs) {
    binding_.late_inputs.assign(inputs.size(), -1);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      int v = program_.inputs[i];
      if (bound(v).constant != nullptr) continue;  // a captured constant
      if (inputs[i].is_tensor() && inputs[i].tensor.dtype() != DType::string) {
        bound(v).place = {Place::Kind::input, static_cast<int>(i), 0, nullptr};
      } else {
        binding_.late_inputs[i] = fact(v).late = new_late(Aliases::kEnd);
      }
    }
  }

  void bind_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    if (step.kind == StepKind::pause) return add_pause(s);
    if (fates_[static_cast<std::size_t>(s)] == Fate::late) return add_late_step(s);
    const bool is_view = step.kind == StepKind::view && bytes_of(step.inputs[0]) == bytes_of(step.outputs[0]);
    if (is_view) return add_view(step);
    add_kernel_step(s);  // which refuses a view of another size
  }

  /// The bytes, refused when no machine has them: sums of what remains do not overflow.
  template <class Name>
  static std::size_t addressable(std::size_t bytes, const Name& name) {
    constexpr std::size_t kAddressSpace = std::size_t{1} << 47;
    if (bytes >= kAddressSpace) fail("out of memory: ", bytes, " bytes for ", name(), "; use smaller inputs");
    return bytes;
  }

  std::size_t bytes_of(int v) {
    return addressable(bound(v).bytes(), [&] {
      const Value& named = *program_.values[static_cast<std::size_t>(v)];
      return concat("'", named.name, "' ", name_of(bound(v).dtype), to_string(bound(v).dims()));
    });
  }

  /// Whether the value, which begins to be, takes the place of an operand that turned out to have its extents.
  bool is_over_operand(int v) {
    const int over = aliases_.of(v).over;
    if (over < 0 || !fact(over).is_stored || bound(over).constant != nullptr) return false;
    return bound(over).dims() == bound(v).dims() && bound(over).dtype == bound(v).dtype;
  }

  /// The value is written into its memory by this step.
  void write(int v, int s) {
    if (aliases_.of(v).home == Memory::Home::input) {
      bound(v).place = {Place::Kind::input, aliases_.of(v).index, 0, nullptr};
      return;
    }
    fact(v).is_stored = true;
    if (storage_of(v).first < 0 && is_over_operand(v)) {
      const int over = aliases_.of(v).over;
      storage_of_memory_[static_cast<std::size_t>(memory(v))] =
          storage_of_memory_[static_cast<std::size_t>(memory(over))];
      storage_of(v).last = aliases_.of(v).last;
    }
    Storage& storage = storage_of(v);
    if (storage.first >= 0) {
      ++binding_.report.in_place;
      return;
    }
    storage.place.kind = Place::Kind::arena;
    storage.bytes = bytes_of(v);
    storage.first = s;
    storage.last = aliases_.of(v).last;
  }

  /// Output 0 becomes another name for input 0.
  void add_view(const Step& step) {
    fact(step.outputs[0]) = fact(step.inputs[0]);
    bound(step.outputs[0]).place = bound(step.inputs[0]).place;
    ++binding_.report.views;
  }

  /// Describes values to `prepare` in the vector kept for so many of them: its memory serves again and again.
  std::vector<TensorInfo>& describe(const std::vector<int>& values, std::vector<std::vector<TensorInfo>>& kept) {
    if (kept.size() <= values.size()) kept.resize(values.size() + 1);
    std::vector<TensorInfo>& infos = kept[values.size()];
    infos.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      TensorInfo& info = infos[i];
      info.present = values[i] >= 0;
      if (!info.present) {
        info = {};
        continue;
      }
      const BoundValue& b = bound(values[i]);
      info.dtype = b.dtype;
      info.dims = b.dims();
      info.constant = b.constant;
    }
    return infos;
  }

  void add_kernel_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    for (int v : step.outputs) {
      if (v >= 0) bytes_of(v);  // refused before the kernel makes tables as long as the output
    }
    PrepareContext context(*step.node);
    std::vector<TensorInfo>& inputs = describe(step.inputs, kept_inputs_);
    std::vector<TensorInfo>& outputs = describe(step.outputs, kept_outputs_);
    context.inputs.swap(inputs);
    context.outputs.swap(outputs);
    BoundStep& bound_step = binding_.steps.emplace_back();
    bound_step.step = s;
    bound_step.kernel = prepare_kernel(context);
    context.inputs.swap(inputs);
    context.outputs.swap(outputs);
    for (int v : step.outputs) {
      if (v >= 0) write(v, s);
    }
    if (context.scratch_bytes == 0) return;
    binding_.steps.back().scratch_bytes = addressable(context.scratch_bytes, [] { return "scratch memory"; });
    scratch_.emplace_back(binding_.steps.size() - 1, context.scratch_bytes);
  }

  void add_late_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    BoundStep& bound_step = binding_.steps.emplace_back();
    bound_step.step = s;
    for (int v : step.outputs) {
      const bool has_place = v >= 0 && step.kind == StepKind::control && is_plain(bound(v));
      if (has_place) write(v, s);
      if (v >= 0 && !has_place) fact(v).late = new_late(aliases_.of(v).last);
      bound_step.late_outputs.push_back(v < 0 ? -1 : fact(v).late);
    }
    if (step.kind == StepKind::late) ++binding_.report.late_steps;
  }

  static bool is_plain(const BoundValue& value) { return value.is_known && value.dtype != DType::string; }

  void add_pause(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    binding_.pause = binding_.steps.size();
    binding_.steps.emplace_back().step = s;
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      const int v = step.outputs[k];
      binding_.late_seeds.push_back(-1);
      if (v < 0) continue;
      if (bound(v).is_known) {
        bound(v).place = {Place::Kind::input, static_cast<int>(program_.inputs.size() + k), 0, nullptr};
      } else {
        binding_.late_seeds.back() = fact(v).late = new_late(aliases_.of(v).last);
      }
    }
  }

  /// Whether output k, which is handed out after the pause, is written to before it: the YieldOp hands out the first
  /// outputs.
  bool is_early(std::size_t k, const Storage& storage) const {
    const int pause = program_.pause;
    return pause >= 0 && k >= program_.steps[static_cast<std::size_t>(pause)].inputs.size() && storage.first <= pause;
  }

  bool is_there(int v) {
    const BoundValue& b = bound(v);
    return b.constant != nullptr || fact(v).is_stored || fact(v).late >= 0 || b.place.kind != Place::Kind::none;
  }

  /// What is written for the caller alone goes straight to its buffers; the rest is copied when the run ends.
  void bind_outputs() {
    for (std::size_t k = 0; k < binding_.outputs.size(); ++k) {
      BoundOutput& output = binding_.outputs[k];
      const int v = output.value;
      if (output.part >= 0 || (!is_last() && !is_there(v))) continue;
      output.part = binding_.part;
      output.is_input = aliases_.of(v).is_overwritten;
      if (!fact(v).is_stored || bound(v).constant != nullptr) continue;
      Storage& storage = storage_of(v);
      const bool is_first = aliases_.of(v).home == Memory::Home::output && aliases_.of(v).index == static_cast<int>(k);
      if (!is_first || !is_own(storage)) continue;
      output.is_early = is_early(k, storage);
      output.buffer = static_cast<int>(binding_.output_bytes.size());
      storage.place = {Place::Kind::output, output.buffer, 0, nullptr};
      binding_.output_bytes.push_back(storage.bytes);
    }
  }

  /// What earlier bindings put into the arena and is still needed.
  Occupied occupied() const {
    Occupied found;
    std::vector<std::size_t> starts;
    std::size_t end = 0;
    for (std::size_t bytes : binding_.blocks) {
      starts.push_back(end);
      end += bytes;
      found.walls.push_back(end);
    }
    for (const Storage& s : storages_) {
      if (s.place.kind != Place::Kind::arena || is_own(s) || s.last < binding_.first) continue;
      found.buffers.push_back({starts[static_cast<std::size_t>(s.place.index)] + s.place.offset, s.bytes, s.last});
    }
    return found;
  }

  /// A place by its offset in all blocks in a row; what lies beyond those there were is in the new one.
  Place in_block(std::size_t offset) const {
    int block = 0;
    for (; block < binding_.part && offset >= binding_.blocks[static_cast<std::size_t>(block)]; ++block) {
      offset -= binding_.blocks[static_cast<std::size_t>(block)];
    }
    return {Place::Kind::arena, block, offset, nullptr};
  }

  void lay_out() {
    std::vector<Lifetime> lifetimes;
    std::vector<int> owner;
    lifetimes.reserve(storages_.size() + scratch_.size());
    owner.reserve(storages_.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].place.kind != Place::Kind::arena || !is_own(storages_[i])) continue;
      lifetimes.push_back({storages_[i].bytes, storages_[i].first, std::min(storages_[i].last, binding_.end)});
      owner.push_back(static_cast<int>(i));
    }
    for (auto [index, bytes] : scratch_) {
      int s = binding_.steps[index].step;
      lifetimes.push_back({bytes, s, s});
    }
    const ArenaPlan plan = plan_arena(lifetimes, occupied());
    const std::size_t before = binding_.arena_bytes();
    binding_.blocks.push_back(plan.peak > before ? plan.peak - before : 0);
    for (std::size_t i = 0; i < owner.size(); ++i) {
      storages_[static_cast<std::size_t>(owner[i])].place = in_block(plan.offsets[i]);
    }
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      binding_.steps[scratch_[i].first].scratch = in_block(plan.offsets[owner.size() + i]);
    }
    binding_.report.peak_bytes = static_cast<std::int64_t>(binding_.arena_bytes());
    binding_.report.lower_bound_bytes =
        std::max(binding_.report.lower_bound_bytes, static_cast<std::int64_t>(plan.lower_bound));
  }

  Place place_of(int v) {
    if (bound(v).constant != nullptr) return {Place::Kind::constant, 0, 0, bound(v).constant->data()};
    if (fact(v).is_stored) return storage_of(v).place;
    if (fact(v).late >= 0) return {Place::Kind::late, fact(v).late, 0, nullptr};
    return bound(v).place;
  }

  void resolve() {
    for (std::size_t v = 0; v < facts_.size(); ++v) {
      binding_.values[v].place = place_of(static_cast<int>(v));
    }
    binding_.pointers.reserve(3 * binding_.steps.size());
    for (BoundStep& b : binding_.steps) {
      const Step& step = program_.steps[static_cast<std::size_t>(b.step)];
      b.first_pointer = binding_.pointers.size();
      b.input_count = step.inputs.size();
      b.output_count = step.outputs.size();
      if (!b.kernel) continue;
      for (int v : step.inputs) add_pointer(b, v);
      for (int v : step.outputs) add_pointer(b, v);
    }
    release_late_values();
    binding_.report.steps += static_cast<int>(binding_.steps.size());
  }

  void add_pointer(BoundStep& b, int v) {
    Place p = v < 0 ? Place{} : bound(v).place;
    if (p.kind == Place::Kind::late) b.late_pointers.push_back(binding_.pointers.size() - b.first_pointer);
    binding_.pointers.push_back(p);
  }

  /// Each at the first bound step at or after its last use.
  void release_late_values() {
    for (std::size_t late = 0; late < late_last_.size(); ++late) {
      if (late_last_[late] < binding_.first || late_last_[late] >= binding_.end) continue;
      auto it = std::lower_bound(binding_.steps.begin(), binding_.steps.end(), late_last_[late],
                                 [](const BoundStep& b, int last) { return b.step < last; });
      if (it != binding_.steps.end()) it->release.push_back(static_cast<int>(late));
    }
  }

  const Program& program_;
  const Aliases& aliases_;
  std::vector<Fate> fates_;
  Binding& binding_;
  std::vector<Fact> facts_;
  std::vector<int> storage_of_memory_;
  std::vector<Storage> storages_;                             // per memory of the program
  std::vector<std::pair<std::size_t, std::size_t>> scratch_;  // bound step, bytes
  std::vector<int> late_last_;                                // per late value: the last step that reads it
  std::vector<std::vector<TensorInfo>> kept_inputs_, kept_outputs_;
};

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

/// A run that meets several sizes has a Binding for each of them: the later, the fewer are kept of each.
constexpr int kFewerPerPart = 4;

}  // namespace

/// To be called with the lock held.
std::shared_ptr<const Binding> BindingCache::find(std::span<const RuntimeValue> values) {
  for (auto it = bindings_.begin(); it != bindings_.end(); ++it) {
    if (!matches(it->key, values)) continue;
    bindings_.splice(bindings_.begin(), bindings_, it);
    return bindings_.front().binding;
  }
  return nullptr;
}

std::shared_ptr<const Binding> BindingCache::get(std::span<const RuntimeValue> values, const Make& make) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = find(values)) return found;
  }
  // Without the lock: rules of users are asked, who may be waiting for somebody that waits for it.
  std::shared_ptr<const Binding> made = make();
  std::lock_guard lock(mutex_);
  if (auto found = find(values)) return found;
  bindings_.push_front({key_of(values), made});
  if (bindings_.size() > capacity_) bindings_.pop_back();
  return made;
}

std::unique_ptr<Binding> make_binding(const Program& program, std::span<const RuntimeValue> inputs, int keep) {
  auto binding = std::make_unique<Binding>();
  binding->program = &program;
  Binder(program, infer_program(program, inputs, *binding), *binding).run(inputs);
  if (binding->end < static_cast<int>(program.steps.size())) binding->rest = std::make_unique<BindingCache>(keep);
  return binding;
}

std::shared_ptr<const Binding> rest_of(const Binding& before, std::span<const RuntimeValue> found) {
  return before.rest->get(found, [&] {
    const Program& program = *before.program;
    auto binding = std::make_unique<Binding>();
    binding->program = &program;
    Binder(program, infer_rest(before, found, *binding), *binding).run_after(before);
    if (binding->end < static_cast<int>(program.steps.size())) {
      binding->rest = std::make_unique<BindingCache>(before.rest->capacity() / kFewerPerPart);
    }
    return binding;
  });
}

std::vector<std::shared_ptr<const Binding>> at_most(std::shared_ptr<const Binding> binding) {
  std::vector<std::shared_ptr<const Binding>> parts{std::move(binding)};
  while (parts.back()->rest != nullptr) {
    const Binding& last = *parts.back();
    std::vector<RuntimeValue> found;
    for (std::size_t i = 0; i < last.found.size(); ++i) {
      if (!last.most[i]) return parts;
      const Value& v = *last.program->values[static_cast<std::size_t>(last.found[i])];
      found.emplace_back(Tensor(v.type.dtype, *last.most[i], nullptr, nullptr));
    }
    try {
      parts.push_back(rest_of(last, found));
    } catch (const InvalidInput&) {  // half as many rows fit to another value's, all of them do not
      return parts;
    }
  }
  return parts;
}

}  // namespace backpass
