#include "runtime/binding.hpp"

#include <algorithm>
#include <map>

#include "graph/blame.hpp"
#include "graph/infer.hpp"
#include "plan/arena.hpp"
#include "runtime/evaluate.hpp"

namespace backpass {
namespace {

// Results of shape arithmetic up to this size are computed while binding, not while running.
constexpr std::int64_t kMaxKnown = 4096;

/// A piece of memory and the steps between which it is needed.
struct Storage {
  Place place;  // kind arena until it is given to an output
  std::size_t bytes = 0;
  int first = 0;
  int last = -1;
  int whole_value = -1;  // the value that defined it
};

class Binder {
 public:
  Binder(const Program& program, std::span<const RuntimeValue> inputs)
      : program_(program), binding_(std::make_unique<Binding>()), facts_(program.values.size()) {
    binding_->program = &program;
    binding_->values.resize(program.values.size());
    find_last_reads();
    for (std::size_t v = 0; v < program.values.size(); ++v) {
      if (program.values[v]->constant) set_constant(static_cast<int>(v), *program.values[v]->constant);
    }
    bind_inputs(inputs);
  }

  std::unique_ptr<Binding> run() {
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      blaming(*program_.steps[s].node, [&] { bind_step(static_cast<int>(s)); });
    }
    bind_outputs();
    lay_out();
    resolve();
    return std::move(binding_);
  }

 private:
  struct Fact {
    Type type;
    int storage = -1;
    std::size_t offset = 0;
    int late = -1;
    int last_read = -1;
  };

  static constexpr int kEnd = 1 << 30;

  BoundValue& bound(int v) { return binding_->values[static_cast<std::size_t>(v)]; }
  Fact& fact(int v) { return facts_[static_cast<std::size_t>(v)]; }
  const Value& value(int v) const { return *program_.values[static_cast<std::size_t>(v)]; }

  void find_last_reads() {
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      program_.steps[s].for_each_read([&](int v) { fact(v).last_read = static_cast<int>(s); });
    }
    for (int v : program_.outputs) fact(v).last_read = kEnd;
  }

  void set_type(int v, Type type) {
    BoundValue& b = bound(v);
    b.is_known = type.is_tensor() && type.shape && is_known(*type.shape);
    if (b.is_known) {
      b.dtype = type.dtype;
      b.dims = to_dims(*type.shape);
    }
    fact(v).type = std::move(type);
  }

  void set_constant(int v, const Tensor& tensor) {
    set_type(v, Type::tensor(tensor.dtype(), to_shape(tensor.dims())));
    BoundValue& b = bound(v);
    b.constant = tensor;
    b.has_constant = true;
    b.place = {Place::Kind::constant, 0, 0, tensor.data()};
  }

  int new_late() { return binding_->late_count++; }

  void bind_inputs(std::span<const RuntimeValue> inputs) {
    ensure(inputs.size() == program_.inputs.size(), "bind: input count");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      int v = program_.inputs[i];
      binding_->late_inputs.push_back(-1);
      if (bound(v).has_constant) continue;  // a captured constant
      set_type(v, input_type(value(v), inputs[i]));
      if (inputs[i].is_tensor() && inputs[i].tensor.dtype() != DType::string) {
        bound(v).place = {Place::Kind::input, static_cast<int>(i), 0, nullptr};
        learn_symbols(value(v), inputs[i].tensor.dims());
      } else {
        binding_->late_inputs.back() = fact(v).late = new_late();
      }
    }
  }

  /// What an empty sequence would hold is known from the model alone.
  static Type input_type(const Value& declared, const RuntimeValue& fed) {
    bool is_empty = fed.kind == RuntimeValue::Kind::sequence && fed.items->empty();
    if (!is_empty || declared.type.kind != Type::Kind::sequence) return type_of(fed);
    return Type::sequence(Type::tensor(declared.type.element->dtype));
  }

  void learn_symbols(const Value& input, const Dims& dims) {
    if (!input.type.shape || input.type.shape->size() != dims.size()) return;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      auto symbol = (*input.type.shape)[i].symbol_name();
      if (!symbol) continue;
      auto [it, added] = symbols_.emplace(*symbol, dims[i]);
      if (added || it->second.is(dims[i])) continue;
      fail("input '", input.name, "' axis ", i, ": got ", dims[i], ", but '", *symbol, "' is ", it->second.str(),
           " in another input; they must be equal");
    }
  }

  void bind_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    const Node& node = *step.node;
    if (is_known_already(step)) return;
    std::vector<std::optional<std::vector<Dim>>> ints = infer(step);
    bool planned = node.def->prepare != nullptr;
    for (int v : step.outputs) planned = planned && (v < 0 || is_plain(v));
    if (ints.size() == 1 && ints[0] && keep_ints(step.outputs[0], *ints[0])) return;
    for (int v : step.inputs) planned = planned && (v < 0 || is_plain(v));
    if (!planned) return add_late_step(s);
    if (node.def->is_view && share_storage(step)) return;
    add_kernel_step(s);
  }

  bool is_plain(int v) { return bound(v).is_known && bound(v).dtype != DType::string; }

  /// Contents that a rule derived from extents alone. A value that is also a model output still has to be produced.
  bool keep_ints(int v, const std::vector<Dim>& ints) {
    const BoundValue& b = bound(v);
    if (!b.is_known || (b.dtype != DType::int64 && b.dtype != DType::int32)) return false;
    if (element_count(b.dims) != static_cast<std::int64_t>(ints.size()) || !is_known(ints)) return false;
    Tensor t(b.dtype, b.dims);
    for (std::size_t i = 0; i < ints.size(); ++i) {
      if (b.dtype == DType::int64) {
        t.as<std::int64_t>()[i] = ints[i].value();
      } else {
        t.as<std::int32_t>()[i] = static_cast<std::int32_t>(ints[i].value());
      }
    }
    set_constant(v, t);
    return true;
  }

  /// Every input's contents are known: the node is evaluated now and needs no step.
  bool is_known_already(const Step& step) {
    const OpDef& def = *step.node->def;
    if (def.is_random || !step.subprograms.empty() || step.inputs.empty()) return false;
    std::int64_t size = 0;
    for (int v : step.inputs) {
      if (v < 0) continue;
      if (!bound(v).has_constant) return false;
      size += bound(v).constant.size();
    }
    if (size > kMaxKnown) return false;
    for (int v : step.outputs) {
      if (v < 0) continue;
      const Type& t = value(v).type;
      if (!t.is_tensor()) return false;
      if (t.shape && is_known(*t.shape) && element_count(to_dims(*t.shape)) > kMaxKnown) return false;
    }
    std::vector<RuntimeValue> inputs;
    for (int v : step.inputs) inputs.push_back(v < 0 ? RuntimeValue() : RuntimeValue(bound(v).constant));
    std::vector<RuntimeValue> results = evaluate_node(*step.node, std::move(inputs));
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      if (step.outputs[k] >= 0) set_constant(step.outputs[k], results[k].tensor);
    }
    return true;
  }

  std::vector<std::optional<std::vector<Dim>>> infer(const Step& step) {
    if (!step.subprograms.empty()) {  // bodies were inferred at import; only symbols are replaced here
      for (int v : step.outputs) {
        if (v < 0) continue;
        Type type = value(v).type;
        if (type.shape) {
          for (Dim& d : *type.shape) d = d.substituted(symbols_);
        }
        set_type(v, std::move(type));
      }
      return {};
    }
    std::vector<const Type*> types;
    std::vector<const Tensor*> constants;
    types.reserve(step.inputs.size());
    constants.reserve(step.inputs.size());
    for (int v : step.inputs) {
      types.push_back(v < 0 ? nullptr : &fact(v).type);
      constants.push_back(v >= 0 && bound(v).has_constant ? &bound(v).constant : nullptr);
    }
    InferContext c(*step.node, std::move(types), std::move(constants), {});
    run_infer_rule(c);
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      if (step.outputs[k] >= 0) set_type(step.outputs[k], std::move(c.outputs[k]));
    }
    return std::move(c.output_ints);
  }

  std::size_t bytes_of(int v) { return byte_size(bound(v).dtype, element_count(bound(v).dims)); }

  int new_storage(int v, int s) {
    Storage storage;
    storage.place.kind = Place::Kind::arena;
    storage.bytes = bytes_of(v);
    storage.first = s;
    storage.last = std::max(s, fact(v).last_read);
    storage.whole_value = v;
    storages_.push_back(storage);
    fact(v).storage = static_cast<int>(storages_.size()) - 1;
    return fact(v).storage;
  }

  Storage* storage_of(int v) {
    int index = fact(v).storage;
    return index < 0 ? nullptr : &storages_[static_cast<std::size_t>(index)];
  }

  /// Output 0 becomes another name for input 0.
  bool share_storage(const Step& step) {
    int in = step.inputs.at(0);
    int out = step.outputs.at(0);
    if (in < 0 || out < 0 || bytes_of(in) != bytes_of(out)) return false;
    fact(out).storage = fact(in).storage;
    fact(out).offset = fact(in).offset;
    fact(out).late = fact(in).late;
    bound(out).place = bound(in).place;
    if (bound(in).has_constant) {
      bound(out).constant = bound(in).constant.reshaped(bound(out).dims);
      bound(out).has_constant = true;
    }
    extend(in, fact(out).last_read);
    ++binding_->report.views;
    return true;
  }

  /// The memory behind v is read until step `last`.
  void extend(int v, int last) {
    if (Storage* storage = storage_of(v)) storage->last = std::max(storage->last, last);
    if (fact(v).late >= 0) {
      int& end = late_last_[fact(v).late];
      end = std::max(end, last);
    }
  }

  TensorInfo info_of(int v) {
    if (v < 0) return {};
    const BoundValue& b = bound(v);
    return {b.dtype, b.dims, b.has_constant ? &b.constant : nullptr, true};
  }

  void add_kernel_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    PrepareContext context(*step.node);
    context.inputs.reserve(step.inputs.size());
    for (int v : step.inputs) context.inputs.push_back(info_of(v));
    for (int v : step.outputs) {
      context.outputs.push_back(info_of(v));
      context.outputs.back().constant = nullptr;
    }
    BoundStep bound_step;
    bound_step.step = s;
    bound_step.kernel = prepare_kernel(context);
    for (int v : step.outputs) {
      if (v >= 0 && !reuse_input(step, v, s)) new_storage(v, s);
    }
    if (context.scratch_bytes > 0) {
      scratch_.emplace_back(binding_->steps.size(), context.scratch_bytes);
    }
    binding_->steps.push_back(std::move(bound_step));
  }

  /// Another input looks at the same memory under other extents: writing would change what it is about to give.
  bool is_shared(const Step& step, std::size_t i) {
    int in = step.inputs[i];
    bool pointwise = step.node->def->tile != nullptr || step.node->def->is_tile_program;
    for (std::size_t j = 0; j < step.inputs.size(); ++j) {
      int other = step.inputs[j];
      if (j == i || other < 0 || fact(other).storage != fact(in).storage) continue;
      if (!pointwise || bound(other).dims != bound(in).dims) return true;
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
      if (in < 0 || bound(in).has_constant) continue;
      Storage* storage = storage_of(in);
      if (storage == nullptr || storage->last != s || storage->place.kind != Place::Kind::arena) continue;
      if (bound(in).dims != bound(out).dims || bound(in).dtype != bound(out).dtype) continue;
      if (storage->bytes != bytes_of(out) || is_shared(step, i)) continue;
      fact(out).storage = fact(in).storage;
      fact(out).offset = fact(in).offset;
      storage->last = std::max(s, fact(out).last_read);
      storage->whole_value = out;
      ++binding_->report.in_place;
      return true;
    }
    return false;
  }

  void add_late_step(int s) {
    const Step& step = program_.steps[static_cast<std::size_t>(s)];
    BoundStep bound_step;
    bound_step.step = s;
    for (int v : step.outputs) {
      int late = v < 0 ? -1 : new_late();
      bound_step.late_outputs.push_back(late);
      if (v < 0) continue;
      bound(v).has_constant = false;
      fact(v).late = late;
      late_last_[late] = std::max(s, fact(v).last_read);
    }
    ++binding_->report.late_steps;
    binding_->steps.push_back(std::move(bound_step));
  }

  /// Storages that outputs fill entirely go straight to the caller's buffers; the rest is copied when the run ends.
  void bind_outputs() {
    for (int v : program_.outputs) {
      BoundOutput output;
      output.value = v;
      Storage* storage = storage_of(v);
      bool fits = storage != nullptr && storage->place.kind == Place::Kind::arena && fact(v).offset == 0 &&
                  storage->bytes == bytes_of(v);
      if (fits) {
        output.buffer = static_cast<int>(binding_->output_bytes.size());
        storage->place = {Place::Kind::output, output.buffer, 0, nullptr};
        binding_->output_bytes.push_back(storage->bytes);
      } else {
        output.needs_copy = true;
      }
      binding_->outputs.push_back(output);
    }
  }

  void lay_out() {
    std::vector<Lifetime> lifetimes;
    std::vector<int> owner;
    auto last_step = static_cast<int>(program_.steps.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].place.kind != Place::Kind::arena) continue;
      lifetimes.push_back({storages_[i].bytes, storages_[i].first, std::min(storages_[i].last, last_step)});
      owner.push_back(static_cast<int>(i));
    }
    for (auto [index, bytes] : scratch_) {
      int s = binding_->steps[index].step;
      lifetimes.push_back({bytes, s, s});
    }
    ArenaPlan plan = plan_arena(lifetimes);
    for (std::size_t i = 0; i < owner.size(); ++i) {
      storages_[static_cast<std::size_t>(owner[i])].place.offset = plan.offsets[i];
    }
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      binding_->steps[scratch_[i].first].scratch_offset = plan.offsets[owner.size() + i];
    }
    binding_->arena_bytes = plan.peak;
    binding_->report.peak_bytes = static_cast<std::int64_t>(plan.peak);
    binding_->report.lower_bound_bytes = static_cast<std::int64_t>(plan.lower_bound);
  }

  Place place_of(int v) {
    if (v < 0) return {};
    if (bound(v).has_constant) return {Place::Kind::constant, 0, 0, bound(v).constant.data()};
    if (const Storage* storage = storage_of(v)) {
      Place p = storage->place;
      p.offset += fact(v).offset;
      return p;
    }
    if (fact(v).late >= 0) return {Place::Kind::late, fact(v).late, fact(v).offset, nullptr};
    return bound(v).place;
  }

  void resolve() {
    for (std::size_t v = 0; v < facts_.size(); ++v) binding_->values[v].place = place_of(static_cast<int>(v));
    for (BoundStep& b : binding_->steps) {
      const Step& step = program_.steps[static_cast<std::size_t>(b.step)];
      b.first_pointer = binding_->pointers.size();
      b.input_count = step.inputs.size();
      b.output_count = step.outputs.size();
      if (!b.kernel) continue;
      for (int v : step.inputs) add_pointer(b, v);
      for (int v : step.outputs) add_pointer(b, v);
    }
    release_late_values();
    binding_->report.steps = static_cast<int>(binding_->steps.size());
    for (const Value* v : program_.values) {
      if (v->constant) binding_->report.constant_bytes += static_cast<std::int64_t>(v->constant->bytes());
    }
  }

  void add_pointer(BoundStep& b, int v) {
    Place p = v < 0 ? Place{} : binding_->values[static_cast<std::size_t>(v)].place;
    if (p.kind == Place::Kind::late) b.late_pointers.push_back(binding_->pointers.size() - b.first_pointer);
    binding_->pointers.push_back(p);
  }

  void release_late_values() {
    std::map<int, std::size_t> position;  // step -> index of the first bound step at or after it
    for (std::size_t i = 0; i < binding_->steps.size(); ++i) position[binding_->steps[i].step] = i;
    for (auto [late, last] : late_last_) {
      if (last == kEnd) continue;
      auto it = position.lower_bound(last);
      if (it != position.end()) binding_->steps[it->second].release.push_back(late);
    }
  }

  const Program& program_;
  std::unique_ptr<Binding> binding_;
  std::vector<Fact> facts_;
  std::vector<Storage> storages_;
  std::vector<std::pair<std::size_t, std::size_t>> scratch_;  // bound step, bytes
  std::map<std::string, Dim> symbols_;
  std::map<int, int> late_last_;
};

}  // namespace

std::unique_ptr<Binding> make_binding(const Program& program, std::span<const RuntimeValue> inputs) {
  return Binder(program, inputs).run();
}

}  // namespace backpass
