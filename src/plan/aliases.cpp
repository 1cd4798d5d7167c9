#include "plan/aliases.hpp"

#include <algorithm>

#include "graph/effects.hpp"
#include "graph/halves.hpp"
#include "graph/op.hpp"
#include "graph/overwriting.hpp"
#include "plan/extents.hpp"
#include "plan/program.hpp"

namespace backpass {
namespace {

std::optional<Dim> bytes_of(const Type& type) {
  if (!type.is_tensor() || !type.shape || type.dtype == DType::string || type.dtype == DType::undefined) {
    return std::nullopt;
  }
  const auto bits = static_cast<std::int64_t>(byte_size(type.dtype, 8));  // of one element: eight have as many bytes
  return unless_it_overflows([&] {
    const Dim elements = product(*type.shape);
    return bits % 8 == 0 ? elements * Dim(bits / 8) : ceil_div(elements * Dim(bits), Dim(8));
  });
}

bool is_plain(const Type& type) { return type.is_tensor() && type.dtype != DType::string; }

bool has_same_extents(const Type& a, const Type& b) { return a.shape && b.shape && *a.shape == *b.shape; }

/// Numbers may give the same extents to both.
bool may_have_same_extents(const Type& a, const Type& b) {
  if (!a.shape || !b.shape) return true;
  auto may_be_equal = [](const Dim& x, const Dim& y) { return !x.is_known() || !y.is_known() || x == y; };
  return std::equal(a.shape->begin(), a.shape->end(), b.shape->begin(), b.shape->end(), may_be_equal);
}

class Finding {
 public:
  explicit Finding(const Program& program) : program_(program) {
    found_.memory.assign(program.values.size(), -1);
    found_.is_needed.assign(program.steps.size(), false);
    found_.last_read.assign(program.values.size(), -1);
  }

  Aliases run() {
    find_reads();
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (program_.values[v]->constant) add_memory(static_cast<int>(v), Memory::Home::constant, -1);
    }
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      const int v = program_.inputs[i];
      if (memory(v) < 0) add_memory(v, Memory::Home::input, -1).index = static_cast<int>(i);
    }
    for (std::size_t s = 0; s < program_.steps.size(); ++s) place_outputs(program_.steps[s], static_cast<int>(s));
    give_to_caller();
    return std::move(found_);
  }

 private:
  int& memory(int v) { return found_.memory[static_cast<std::size_t>(v)]; }
  Memory& memory_of(int v) { return found_.memories[static_cast<std::size_t>(memory(v))]; }
  const Type& type(int v) const { return program_.values[static_cast<std::size_t>(v)]->type; }
  int& last_read(int v) { return found_.last_read[static_cast<std::size_t>(v)]; }

  /// A step is needed when it has an effect, or something it gives is read by a step that is. Many exported tensors are
  /// only asked for their extents, which are known without them.
  void find_reads() {
    for (int v : program_.outputs) last_read(v) = Aliases::kEnd;
    for (std::size_t i = program_.steps.size(); i-- > 0;) {
      const Step& step = program_.steps[i];
      const auto is_read = [&](int v) { return v >= 0 && last_read(v) >= 0; };
      const bool is_used = std::any_of(step.outputs.begin(), step.outputs.end(), is_read);
      if (!is_used && !has_effect(*step.node)) continue;
      found_.is_needed[i] = true;
      if (needs_nothing_of_its_input(step, static_cast<int>(i))) continue;
      step.for_each_read([&](int v) { last_read(v) = std::max(last_read(v), static_cast<int>(i)); });
    }
  }

  /// Whether extents are all that is asked for, and are there before any step runs.
  bool needs_nothing_of_its_input(const Step& step, int s) {
    if (!reads_extents_only(*step.node)) return false;
    const int in = step.inputs.at(0);
    const bool is_read_anyway = last_read(in) >= s;
    return !is_read_anyway && extents_.are_known(program_.values[static_cast<std::size_t>(in)]);
  }

  Memory& add_memory(int v, Memory::Home home, int step) {
    memory(v) = static_cast<int>(found_.memories.size());
    Memory& added = found_.memories.emplace_back();
    added.home = home;
    added.first = step;
    added.last = std::max(step, last_read(v));
    added.bytes = bytes_of(type(v));
    return added;
  }

  void share(int v, int with) {
    memory(v) = memory(with);
    Memory& shared = memory_of(v);
    shared.last = std::max(shared.last, last_read(v));
    if (!shared.bytes) shared.bytes = bytes_of(type(v));
  }

  void place_outputs(const Step& step, int s) {
    if (step.kind == StepKind::accumulate) write_over_inputs(step, s);
    for (std::size_t k = 0; k < step.outputs.size(); ++k) {
      const int v = step.outputs[k];
      if (v < 0 || memory(v) >= 0) continue;
      if (step.kind == StepKind::view) {
        share(v, step.inputs[0]);
      } else if (step.kind == StepKind::pause) {
        add_memory(v, Memory::Home::input, s).index = static_cast<int>(program_.inputs.size() + k);
      } else if (step.kind == StepKind::late || !is_plain(type(v))) {
        add_memory(v, Memory::Home::late, s);
      } else if (const int over = overwritten(step, v, s, has_same_extents); over >= 0) {
        share(v, over);
      } else {
        const int perhaps = overwritten(step, v, s, may_have_same_extents);
        add_memory(v, Memory::Home::arena, s).over = perhaps;
      }
    }
  }

  void write_over_inputs(const Step& step, int s) {
    const std::vector<const Value*> over = overwritten_by(*step.node);
    for (std::size_t k = 0; k < over.size(); ++k) {
      if (over[k] == nullptr || step.outputs[k] < 0) continue;
      const auto place = std::find(step.node->inputs.begin(), step.node->inputs.end(), over[k]);
      const int in = step.inputs[static_cast<std::size_t>(place - step.node->inputs.begin())];
      ensure(memory_of(in).home == Memory::Home::input && memory_of(in).last == s, shown(*step.node), " writes over '",
             over[k]->name, "', which is no input or read later");
      share(step.outputs[k], in);
      memory_of(in).is_overwritten = true;
    }
  }

  /// The operand that the step's only result can be written over, since nobody needs it afterwards; -1: none.
  template <class F>
  int overwritten(const Step& step, int out, int s, const F& fits) {
    const OpDef& def = *step.node->def;
    if (def.in_place_input < 0 || step.outputs.size() != 1) return -1;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const int in = step.inputs[i];
      if (step.kind != StepKind::tile && static_cast<int>(i) != def.in_place_input) continue;
      if (in < 0 || memory_of(in).home != Memory::Home::arena || memory_of(in).last != s) continue;
      if (type(in).dtype != type(out).dtype || !fits(type(in), type(out))) continue;
      if (!is_seen_otherwise(step, i)) return in;
    }
    return -1;
  }

  /// Another operand looks at the same memory under other extents: writing would change what it is about to give.
  bool is_seen_otherwise(const Step& step, std::size_t i) {
    const int in = step.inputs[i];
    for (std::size_t j = 0; j < step.inputs.size(); ++j) {
      const int other = step.inputs[j];
      if (j == i || other < 0 || memory(other) != memory(in)) continue;
      if (step.kind != StepKind::tile || !has_same_extents(type(other), type(in))) return true;
    }
    return false;
  }

  void give_to_caller() {
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) {
      const int v = program_.outputs[k];
      if (memory(v) < 0 || memory_of(v).home != Memory::Home::arena) continue;
      memory_of(v).home = Memory::Home::output;
      memory_of(v).index = static_cast<int>(k);
    }
  }

  const Program& program_;
  Extents extents_;
  Aliases found_;
};

}  // namespace

Aliases find_aliases(const Program& program) { return Finding(program).run(); }

}  // namespace backpass
