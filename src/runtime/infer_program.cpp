#include "runtime/infer_program.hpp"

#include <algorithm>
#include <map>

#include "graph/blame.hpp"
#include "graph/evaluate.hpp"
#include "graph/infer.hpp"

namespace backpass {
namespace {

// Contents up to this size that follow from extents alone are computed while binding, not while running.
constexpr std::int64_t kMaxKnown = std::int64_t{1} << 16;

class Inference {
 public:
  Inference(const Program& program, Binding& binding)
      : program_(program),
        binding_(binding),
        own_types_(program.values.size()),
        types_(program.values.size(), nullptr),
        is_found_(program.values.size(), false) {
    for (std::size_t v = 0; v < program.values.size(); ++v) {
      if (program.values[v]->constant) set_constant(static_cast<int>(v), &*program.values[v]->constant);
    }
  }

  /// Goes on where another binding ended.
  void take_over(const Binding& before, std::span<const RuntimeValue> found) {
    symbols_ = before.handover.symbols;
    for (const auto& [v, type] : before.handover.open_types) set_type(v, type);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].is_tensor()) continue;  // nobody reads it
      const int v = before.found[i];
      set_type(v, type_of(found[i]));
      learn_symbols(value(v), found[i].tensor.dims(), [](std::size_t, const std::string&, const Dim&) {});
    }
  }

  /// The steps from `binding.first` to where they can be inferred.
  std::vector<Fate> infer_steps() {
    std::vector<Fate> kinds(program_.steps.size(), Fate::late);
    auto i = static_cast<std::size_t>(binding_.first);
    for (; i < kinds.size() && !reads_found(program_.steps[i]); ++i) {
      const Step& step = program_.steps[i];
      blaming(*step.node, [&] { kinds[i] = infer(step); });
      if (kinds[i] == Fate::late && program_.aliases.is_needed[i]) find_outputs(step);
    }
    binding_.end = static_cast<int>(i);
    if (i < kinds.size()) hand_over();
    return kinds;
  }

  void take_inputs(std::span<const RuntimeValue> inputs) {
    ensure(inputs.size() == program_.inputs.size(), "bind: input count");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      int v = program_.inputs[i];
      if (bound(v).constant != nullptr) continue;  // a captured constant
      set_type(v, input_type(value(v), inputs[i]));
      if (inputs[i].is_tensor() && inputs[i].tensor.dtype() != DType::string) {
        const Dims& dims = inputs[i].tensor.dims();
        learn_symbols(value(v), dims, [&](std::size_t axis, const std::string& symbol, const Dim& other) {
          fail("input '", value(v).name, "' axis ", axis, ": got ", dims[axis], ", but '", symbol, "' is ", other.str(),
               " in another input; they must be equal");
        });
      }
    }
  }

 private:
  Fate infer(const Step& step) {
    const OpDef& def = *step.node->def;
    bool planned = def.prepare != nullptr;
    bool known = !def.is_random && step.subprograms.empty() && !step.inputs.empty();
    for (int v : step.inputs) {
      planned = planned && (v < 0 || is_plain(v));
      known = known && (v < 0 || bound(v).constant != nullptr);
    }
    bool are_ints = run_rule(step);
    if (are_ints) return Fate::known;
    if (def.is_view && keep_view(step)) return Fate::known;
    if (known && is_small(step)) {
      evaluate(step);
      return Fate::known;
    }
    for (int v : step.outputs) planned = planned && (v < 0 || is_plain(v));
    return planned ? Fate::planned : Fate::late;
  }

  bool reads_found(const Step& step) const {
    bool any = false;
    step.for_each_read([&](int v) { any = any || is_found_[static_cast<std::size_t>(v)]; });
    return any;
  }

  /// Tensors that a late step makes have extents once it has run.
  void find_outputs(const Step& step) {
    for (int v : step.outputs) {
      if (v < 0 || bound(v).is_known) continue;
      const Type& type = *types_[static_cast<std::size_t>(v)];
      if (!type.is_tensor() || type.dtype == DType::string) continue;
      is_found_[static_cast<std::size_t>(v)] = true;
      binding_.found.push_back(v);
      binding_.most.push_back(largest(type));
    }
  }

  /// The extents, with what they are never above in the place of those that are not known.
  std::optional<Dims> largest(const Type& type) const {
    if (!type.shape) return std::nullopt;
    Dims dims;
    for (const Dim& d : *type.shape) {
      const Dim most = d.substituted(most_);
      if (!most.is_known()) return std::nullopt;
      dims.push_back(most.value());
    }
    return dims;
  }

  void hand_over() {
    binding_.handover.symbols = symbols_;
    for (std::size_t v = 0; v < types_.size(); ++v) {
      if (types_[v] != nullptr && !binding_.values[v].is_known && !is_found_[v]) {
        binding_.handover.open_types.emplace_back(static_cast<int>(v), *types_[v]);
      }
    }
  }
  BoundValue& bound(int v) { return binding_.values[static_cast<std::size_t>(v)]; }
  const Value& value(int v) const { return *program_.values[static_cast<std::size_t>(v)]; }

  bool is_plain(int v) { return bound(v).is_known && bound(v).dtype != DType::string; }

  bool is_same_size(int a, int b) { return a >= 0 && b >= 0 && bound(a).bytes() == bound(b).bytes(); }

  /// Null when nothing is known of the value.
  const Type* type_at(int v) {
    const Type*& type = types_[static_cast<std::size_t>(v)];
    const BoundValue& b = bound(v);
    if (type == nullptr && b.is_known) {  // taken over
      own_types_[static_cast<std::size_t>(v)] = Type::tensor(b.dtype, to_shape(b.dims()));
      type = &own_types_[static_cast<std::size_t>(v)];
    }
    return type;
  }

  void set_type(int v, Type type) {
    Type& own = own_types_[static_cast<std::size_t>(v)];
    own = std::move(type);
    types_[static_cast<std::size_t>(v)] = &own;
    BoundValue& b = bound(v);
    b.is_known = own.is_tensor() && own.shape && is_known(*own.shape);
    if (!b.is_known) return;
    b.dtype = own.dtype;
    b.own_dims = to_dims(*own.shape);
  }

  void set_constant(int v, const Tensor* tensor) {
    const Type& declared = value(v).type;
    bool says_all = value(v).constant && declared.is_tensor() && declared.shape && is_known(*declared.shape);
    if (!says_all) own_types_[static_cast<std::size_t>(v)] = Type::tensor(tensor->dtype(), to_shape(tensor->dims()));
    types_[static_cast<std::size_t>(v)] = says_all ? &declared : &own_types_[static_cast<std::size_t>(v)];
    BoundValue& b = bound(v);
    b.is_known = true;
    b.dtype = tensor->dtype();
    b.constant = tensor;
  }

  void keep_constant(int v, Tensor tensor) { set_constant(v, &binding_.known.emplace_back(std::move(tensor))); }

  /// What an empty sequence would hold is known from the model alone.
  static Type input_type(const Value& declared, const RuntimeValue& fed) {
    bool is_empty = fed.kind == RuntimeValue::Kind::sequence && fed.items->empty();
    if (!is_empty || declared.type.kind != Type::Kind::sequence) return type_of(fed);
    return Type::sequence(Type::tensor(declared.type.element->dtype));
  }

  /// What the extents say of the symbols they are declared as. `contradicted` is told of those known as another number.
  template <class F>
  void learn_symbols(const Value& declared, const Dims& dims, const F& contradicted) {
    if (!declared.type.shape || declared.type.shape->size() != dims.size()) return;
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
      auto symbol = (*declared.type.shape)[axis].symbol_name();
      if (!symbol) continue;
      auto [it, added] = symbols_.emplace(*symbol, dims[axis]);
      if (!added && !it->second.is(dims[axis])) contradicted(axis, *symbol, it->second);
    }
  }

  /// Sets the types of the outputs. True when the rule also derived the contents of the only output.
  bool run_rule(const Step& step) {
    most_.clear();
    if (!step.subprograms.empty()) {
      substitute_symbols(step);
      return false;
    }
    std::vector<const Type*> types;
    std::vector<const Tensor*> constants;
    types.reserve(step.inputs.size());
    constants.reserve(step.inputs.size());
    for (int v : step.inputs) {
      types.push_back(v < 0 ? nullptr : type_at(v));
      constants.push_back(v < 0 ? nullptr : bound(v).constant);
    }
    InferContext c(*step.node, std::move(types), std::move(constants), {});
    run_infer_rule(c);
    most_ = std::move(c.most);
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      if (step.outputs[k] >= 0) set_type(step.outputs[k], std::move(c.outputs[k]));
    }
    return step.outputs.size() == 1 && c.output_ints[0] && keep_ints(step.outputs[0], *c.output_ints[0]);
  }

  /// Bodies were inferred at import; only symbols are replaced here.
  void substitute_symbols(const Step& step) {
    for (int v : step.outputs) {
      if (v < 0) continue;
      Type type = value(v).type;
      if (type.shape) {
        for (Dim& d : *type.shape) d = d.substituted(symbols_);
      }
      set_type(v, std::move(type));
    }
  }

  bool keep_ints(int v, const std::vector<Dim>& ints) {
    if (v < 0) return false;
    const BoundValue& b = bound(v);
    if (!b.is_known || (b.dtype != DType::int64 && b.dtype != DType::int32)) return false;
    if (element_count(b.dims()) != static_cast<std::int64_t>(ints.size()) || !is_known(ints)) return false;
    Tensor t(b.dtype, b.dims());
    for (std::size_t i = 0; i < ints.size(); ++i) {
      if (b.dtype == DType::int64) {
        t.as<std::int64_t>()[i] = ints[i].value();
      } else {
        t.as<std::int32_t>()[i] = static_cast<std::int32_t>(ints[i].value());
      }
    }
    keep_constant(v, std::move(t));
    return true;
  }

  /// A constant under another shape, however large.
  bool keep_view(const Step& step) {
    int in = step.inputs.at(0);
    int out = step.outputs.at(0);
    if (in < 0 || out < 0 || bound(in).constant == nullptr || !is_plain(in) || !is_plain(out)) return false;
    if (bound(in).dtype != bound(out).dtype || !is_same_size(in, out)) return false;
    keep_constant(out, bound(in).constant->reshaped(bound(out).own_dims));
    return true;
  }

  bool is_small(const Step& step) {
    std::int64_t size = 0;
    for (int v : step.inputs) size += v < 0 ? 0 : bound(v).constant->size();
    for (int v : step.outputs) {
      if (v < 0) continue;
      if (!value(v).type.is_tensor()) return false;
      if (bound(v).is_known) size += element_count(bound(v).dims());
    }
    return size <= 2 * kMaxKnown;
  }

  void evaluate(const Step& step) {
    std::vector<RuntimeValue> inputs;
    inputs.reserve(step.inputs.size());
    for (int v : step.inputs) inputs.push_back(v < 0 ? RuntimeValue() : RuntimeValue(*bound(v).constant));
    std::vector<RuntimeValue> results = evaluate_node(*step.node, std::move(inputs));
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      if (step.outputs[k] >= 0) keep_constant(step.outputs[k], std::move(results[k].tensor));
    }
  }

  const Program& program_;
  Binding& binding_;
  std::vector<Type> own_types_;
  std::vector<const Type*> types_;
  std::vector<bool> is_found_;
  std::map<std::string, Dim> symbols_;
  std::map<std::string, Dim> most_;  // of the extents that the last step depends on data for
};

}  // namespace

std::vector<Fate> infer_program(const Program& program, std::span<const RuntimeValue> inputs, Binding& binding) {
  binding.values.resize(program.values.size());
  Inference inference(program, binding);
  inference.take_inputs(inputs);
  return inference.infer_steps();
}

std::vector<Fate> infer_rest(const Binding& before, std::span<const RuntimeValue> found, Binding& binding) {
  binding.values = before.values;
  binding.first = before.end;
  Inference inference(*before.program, binding);
  inference.take_over(before, found);
  return inference.infer_steps();
}

}  // namespace backpass
