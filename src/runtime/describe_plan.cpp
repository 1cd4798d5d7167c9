#include <cstdio>

#include "runtime/binding.hpp"

namespace backpass {
namespace {

std::string kib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024.0);
  return text;
}

std::string place_text(const Place& p) {
  switch (p.kind) {
    case Place::Kind::arena:
      return "@" + std::to_string(p.offset);
    case Place::Kind::output:
      return "@output" + std::to_string(p.index);
    case Place::Kind::late:
      return "@late";
    default:
      return "";
  }
}

}  // namespace

std::string describe_plan(const Binding& binding) {
  std::string text;
  for (const BoundStep& bound : binding.steps) {
    const Step& step = binding.program->steps[static_cast<std::size_t>(bound.step)];
    text += bound.kernel ? "  " : "  late ";
    text += step.node->label() + " ";
    auto add = [&](int v) {
      if (v < 0) return;
      const BoundValue& value = binding.values[static_cast<std::size_t>(v)];
      text += " %" + binding.program->values[static_cast<std::size_t>(v)]->name + ":";
      text += value.is_known ? std::string(name_of(value.dtype)) + to_string(value.dims) : "?";
      text += place_text(value.place);
    };
    for (int v : step.inputs) add(v);
    text += " ->";
    for (int v : step.outputs) add(v);
    text += "\n";
  }
  const PlanReport& r = binding.report;
  text += concat(r.steps, " steps, ", r.views, " views, ", r.in_place, " in place, ", r.late_steps, " late\n");
  text += concat("arena: ", kib(r.peak_bytes), " planned, ", kib(r.lower_bound_bytes),
                 " lower bound; constants: ", kib(r.constant_bytes), "\n");
  return text;
}

}  // namespace backpass
