#include "runtime/binding.hpp"

#include <algorithm>

#include "graph/blame.hpp"
#include "graph/evaluate.hpp"
#include "ops/custom/yield.hpp"
#include "plan/arena.hpp"
#include "runtime/infer_program.hpp"

namespace backpass {
namespace {

/// A piece of memory and the steps between which it is needed.
struct Storage {
  Place place;  // kind arena until it is given to an output
  std::size_t bytes = 0;
  int first = 0;
  int last = -1;
};

/// The second half of binding: kernels, and where values lie.
class Binder {
 public:
  Binder(const Program& program, std::vector<StepKind> kinds, Binding& binding)
      : program_(program),
        kinds_(std::move(kinds)),
        needs_(find_needs(program, kinds_)),
        binding_(binding),
        facts_(program.values.size()) {
    storages_.reserve(program.steps.size());
  }

  void run(std::span<const RuntimeValue> inputs) {
    bind_inputs(inputs);
    binding_.steps.reserve(needs_.count);
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (needs_.steps[i]) blaming(*program_.steps[i].node, [&] { bind_step(static_cast<int>(i)); });
    }
    bind_outputs();
    lay_out();
    resolve();
  }

 private:
  struct Fact {
    int storage = -1;
    int late = -1;
  };

  BoundValue& bound(int v) { return binding_.values[static_cast<std::size_t>(v)]; }
  Fact& fact(int v) { return facts_[static_cast<std::size_t>(v)]; }

  int last_read(int v) const { return needs_.last_read[static_cast<std::size_t>(v)]; }

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
        binding_.late_inputs[i] = fact(v).late = new_late(Needs::kEnd);
      }
    }
  }

  void bind_step(int s) {
    switch (kinds_[static_cast<std::size_t>(s)]) {
      case StepKind::known:
        break;
      case StepKind::view:
        return share_storage(program_.steps[static_cast<std::size_t>(s)]);
      case StepKind::kernel:
        return add_kernel_step(s);
      case StepKind::late:
        return is_yield(*program_.steps[static_cast<std::size_t>(s)].node) ? add_pause(s) : add_late_step(s);
    }
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

  void new_storage(int v, int s) {
    Storage storage;
    storage.place.kind = Place::Kind::arena;
    storage.bytes = bytes_of(v);
    storage.first = s;
    storage.last = std::max(s, last_read(v));
    fact(v).storage = static_cast<int>(storages_.size());
    storages_.push_back(storage);
  }

  Storage* storage_of(int v) {
    int index = fact(v).storage;
    return index < 0 ? nullptr : &storages_[static_cast<std::size_t>(index)];
  }

  /// Output 0 becomes another name for input 0.
  void share_storage(const Step& step) {
    int in = step.inputs[0];
    int out = step.outputs[0];
    fact(out).storage = fact(in).storage;
    fact(out).late = fact(in).late;
    bound(out).place = bound(in).place;
    int last = last_read(out);  // until then the memory behind the input is read
    if (Storage* storage = storage_of(in)) storage->last = std::max(storage->last, last);
    if (fact(in).late >= 0) {
      int& end = late_last_[static_cast<std::size_t>(fact(in).late)];
      end = std::max(end, last);
    }
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
      if (v >= 0 && !reuse_input(step, v, s)) new_storage(v, s);
    }
    if (context.scratch_bytes == 0) return;
    binding_.steps.back().scratch_bytes = addressable(context.scratch_bytes, [] { return "scratch memory"; });
    scratch_.emplace_back(binding_.steps.size() - 1, context.scratch_bytes);
  }

  /// Another input looks at the same memory under other extents: writing would change what it is about to give.
  bool is_shared(const Step& step, std::size_t i) {
    int in = step.inputs[i];
    bool pointwise = step.node->def->tile != nullptr || step.node->def->is_tile_program;
    for (std::size_t j = 0; j < step.inputs.size(); ++j) {
      int other = step.inputs[j];
      if (j == i || other < 0 || fact(other).storage != fact(in).storage) continue;
      if (!pointwise || bound(other).dims() != bound(in).dims()) return true;
    }
    return false;
  }

  /// Writes output 0 over an input that nobody needs afterwards.
  bool reuse_input(const Step& step, int out, int s) {
    const OpDef& def = *step.node->def;
    if (def.in_place_input < 0 || step.outputs.size() != 1) return false;
    bool any = def.tile != nullptr || def.is_tile_program;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      if (!any && static_cast<int>(i) != def.in_place_input) continue;
      int in = step.inputs[i];
      if (in < 0 || bound(in).constant != nullptr) continue;
      Storage* storage = storage_of(in);
      if (storage == nullptr || storage->last != s || storage->place.kind != Place::Kind::arena) continue;
      if (bound(in).dims() != bound(out).dims() || bound(in).dtype != bound(out).dtype) continue;
      if (storage->bytes != bound(out).bytes() || is_shared(step, i)) continue;
      fact(out).storage = fact(in).storage;
      storage->last = std::max(s, last_read(out));
      ++binding_.report.in_place;
      return true;
    }
    return false;
  }

  void add_late_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    BoundStep& bound_step = binding_.steps.emplace_back();
    bound_step.step = s;
    for (int v : step.outputs) {
      if (v >= 0) fact(v).late = new_late(std::max(s, last_read(v)));
      bound_step.late_outputs.push_back(v < 0 ? -1 : fact(v).late);
    }
    ++binding_.report.late_steps;
  }

  void add_pause(int s) {
    ensure(!binding_.pause, "a second YieldOp");
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
        binding_.late_seeds.back() = fact(v).late = new_late(std::max(s, last_read(v)));
      }
    }
  }

  /// Whether memory written before the pause would be output k, whose buffer comes only after it: the YieldOp hands
  /// out the first outputs.
  bool crosses_pause(std::size_t k, const Storage& storage) const {
    if (!binding_.pause) return false;
    const int pause = binding_.steps[*binding_.pause].step;
    return k >= program_.steps[static_cast<std::size_t>(pause)].inputs.size() && storage.first <= pause;
  }

  /// Storages that outputs fill entirely go straight to the caller's buffers; the rest is copied when the run ends.
  void bind_outputs() {
    for (int v : program_.outputs) {
      BoundOutput output;
      output.value = v;
      Storage* storage = storage_of(v);
      bool fits = storage != nullptr && storage->place.kind == Place::Kind::arena &&
                  storage->bytes == bound(v).bytes() && !crosses_pause(binding_.outputs.size(), *storage);
      if (fits) {
        output.buffer = static_cast<int>(binding_.output_bytes.size());
        storage->place = {Place::Kind::output, output.buffer, 0, nullptr};
        binding_.output_bytes.push_back(storage->bytes);
      } else {
        output.needs_copy = true;
      }
      binding_.outputs.push_back(output);
    }
  }

  void lay_out() {
    std::vector<Lifetime> lifetimes;
    std::vector<int> owner;
    lifetimes.reserve(storages_.size() + scratch_.size());
    owner.reserve(storages_.size());
    auto last_step = static_cast<int>(program_.steps.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].place.kind != Place::Kind::arena) continue;
      lifetimes.push_back({storages_[i].bytes, storages_[i].first, std::min(storages_[i].last, last_step)});
      owner.push_back(static_cast<int>(i));
    }
    for (auto [index, bytes] : scratch_) {
      int s = binding_.steps[index].step;
      lifetimes.push_back({bytes, s, s});
    }
    ArenaPlan plan = plan_arena(lifetimes);
    for (std::size_t i = 0; i < owner.size(); ++i) {
      storages_[static_cast<std::size_t>(owner[i])].place.offset = plan.offsets[i];
    }
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      binding_.steps[scratch_[i].first].scratch_offset = plan.offsets[owner.size() + i];
    }
    binding_.arena_bytes = plan.peak;
    binding_.report.peak_bytes = static_cast<std::int64_t>(plan.peak);
    binding_.report.lower_bound_bytes = static_cast<std::int64_t>(plan.lower_bound);
  }

  Place place_of(int v) {
    if (bound(v).constant != nullptr) return {Place::Kind::constant, 0, 0, bound(v).constant->data()};
    if (const Storage* storage = storage_of(v)) return storage->place;
    if (fact(v).late >= 0) return {Place::Kind::late, fact(v).late, 0, nullptr};
    return bound(v).place;
  }

  void resolve() {
    for (std::size_t v = 0; v < facts_.size(); ++v) {
      binding_.values[v].place = place_of(static_cast<int>(v));
      const std::optional<Tensor>& constant = program_.values[v]->constant;
      if (constant) binding_.report.constant_bytes += static_cast<std::int64_t>(constant->bytes());
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
    binding_.report.steps = static_cast<int>(binding_.steps.size());
  }

  void add_pointer(BoundStep& b, int v) {
    Place p = v < 0 ? Place{} : bound(v).place;
    if (p.kind == Place::Kind::late) b.late_pointers.push_back(binding_.pointers.size() - b.first_pointer);
    binding_.pointers.push_back(p);
  }

  /// Each at the first bound step at or after its last use.
  void release_late_values() {
    for (std::size_t late = 0; late < late_last_.size(); ++late) {
      auto it = std::lower_bound(binding_.steps.begin(), binding_.steps.end(), late_last_[late],
                                 [](const BoundStep& b, int last) { return b.step < last; });
      if (it != binding_.steps.end()) it->release.push_back(static_cast<int>(late));
    }
  }

  const Program& program_;
  std::vector<StepKind> kinds_;
  Needs needs_;
  Binding& binding_;
  std::vector<Fact> facts_;
  std::vector<Storage> storages_;
  std::vector<std::pair<std::size_t, std::size_t>> scratch_;  // bound step, bytes
  std::vector<int> late_last_;                                // per late value: the last step that reads it
  std::vector<std::vector<TensorInfo>> kept_inputs_, kept_outputs_;
};

}  // namespace

std::unique_ptr<Binding> make_binding(const Program& program, std::span<const RuntimeValue> inputs) {
  auto binding = std::make_unique<Binding>();
  binding->program = &program;
  Binder(program, infer_program(program, inputs, *binding), *binding).run(inputs);
  return binding;
}

}  // namespace backpass
