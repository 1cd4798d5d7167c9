#include <charconv>
#include <cstdio>

#include "runtime/binding.hpp"

namespace backpass {
namespace {

std::string kib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024.0);
  return text;
}

void add_number(std::string& text, std::int64_t n) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, n).ptr);
}

void add_place(std::string& text, const Place& p) {
  if (p.kind == Place::Kind::arena) {
    text += '@';
    add_number(text, static_cast<std::int64_t>(p.offset));
  } else if (p.kind == Place::Kind::output) {
    text += "@output";
    add_number(text, p.index);
  } else if (p.kind == Place::Kind::late) {
    text += "@late";
  }
}

void add_label(std::string& text, const Node& node) {
  text += '[';
  if (!node.domain.empty()) text.append(node.domain).append(1, '.');
  text.append(node.op).append(" '").append(node.name).append("'] ");
}

void add_value(std::string& text, const Binding& binding, int v) {
  if (v < 0) return;
  const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
  text.append(" %").append(binding.program->values[static_cast<std::size_t>(v)]->name).append(1, ':');
  if (value.is_known) {
    text += name_of(value.dtype);
    char before = '[';
    for (std::int64_t d : value.dims()) {
      text += before;
      add_number(text, d);
      before = ',';
    }
    text += before == '[' ? "[]" : "]";
  } else {
    text += '?';
  }
  add_place(text, value.place);
}

/// The step and the value of it (-1: its scratch memory) that take most of the arena.
struct Largest {
  const Step* step = nullptr;
  int value = -1;
  std::size_t bytes = 0;

  void consider(const Step& s, int v, std::size_t b) {
    if (step == nullptr || b > bytes) *this = {&s, v, b};
  }
};

Largest largest_of(const Binding& binding) {
  Largest largest;
  for (const BoundStep& bound : binding.steps) {
    const Step& step = binding.program->steps[static_cast<std::size_t>(bound.step)];
    if (bound.scratch_bytes > 0) largest.consider(step, -1, bound.scratch_bytes);
    for (int v : step.outputs) {
      if (v < 0) continue;
      const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
      if (value.place.kind != Place::Kind::arena) continue;
      largest.consider(step, v, value.bytes());
    }
  }
  return largest;
}

}  // namespace

void fail_for_arena(const Binding& binding) {
  const Largest largest = largest_of(binding);
  ensure(largest.step != nullptr, "an arena of ", binding.arena_bytes, " bytes that nobody needs");
  std::string what = "its scratch memory";
  if (largest.value >= 0) {
    const BoundValue& value = binding.values[static_cast<std::size_t>(largest.value)];
    what = concat("its result '", binding.program->values[static_cast<std::size_t>(largest.value)]->name, "' ",
                  name_of(value.dtype), to_string(value.dims()));
  }
  fail(largest.step->node->label(), " out of memory: a run was to take ", binding.arena_bytes, " bytes, ",
       largest.bytes, " of them for ", what, "; use smaller inputs");
}

std::string describe_plan(const Binding& binding) {
  constexpr std::size_t kLine = 192;
  std::string text;
  text.reserve(kLine * (binding.steps.size() + 2));
  for (const BoundStep& bound : binding.steps) {
    const Step& step = binding.program->steps[static_cast<std::size_t>(bound.step)];
    text += bound.kernel ? "  " : "  late ";
    add_label(text, *step.node);
    for (int v : step.inputs) add_value(text, binding, v);
    text += " ->";
    for (int v : step.outputs) add_value(text, binding, v);
    text += '\n';
  }
  const PlanReport& r = binding.report;
  text += concat(r.steps, " steps, ", r.views, " views, ", r.in_place, " in place, ", r.late_steps, " late\n");
  text += concat("arena: ", kib(r.peak_bytes), " planned, ", kib(r.lower_bound_bytes),
                 " lower bound; constants: ", kib(r.constant_bytes), "\n");
  return text;
}

}  // namespace backpass
