#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

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
  ensure(largest.step != nullptr, "an arena of ", binding.arena_bytes(), " bytes that nobody needs");
  std::string what = "its scratch memory";
  if (largest.value >= 0) {
    const BoundValue& value = binding.values[static_cast<std::size_t>(largest.value)];
    what = concat("its result '", binding.program->values[static_cast<std::size_t>(largest.value)]->name, "' ",
                  name_of(value.dtype), to_string(value.dims()));
  }
  fail(largest.step->node->label(), " out of memory: a run was to take ", binding.arena_bytes(), " bytes, ",
       largest.bytes, " of them for ", what, "; use smaller inputs");
}

namespace {

using Parts = std::span<const std::shared_ptr<const Binding>>;

/// Values of the arena and how long each is read; what is computed in place of another begins where that one ends.
class Buffers {
 public:
  explicit Buffers(Parts parts) : last_(*parts.back()), index_(last_.program->values.size(), -1) {
    for (const auto& part : parts) {
      for (const BoundStep& bound : part->steps) add(last_.program->steps[static_cast<std::size_t>(bound.step)]);
    }
  }

  void put_into(PlanReport& report) {
    report.live_bytes.assign(static_cast<std::size_t>(now_), 0);
    std::vector<std::map<std::int64_t, std::int64_t>> live(static_cast<std::size_t>(now_));
    for (const PlannedBuffer& b : found_) {
      for (int s = b.first; s <= b.last; ++s) {
        std::int64_t& bytes = live[static_cast<std::size_t>(s)][b.offset];
        bytes = std::max(bytes, b.bytes);
      }
    }
    for (std::size_t s = 0; s < live.size(); ++s) {
      for (const auto& [offset, bytes] : live[s]) report.live_bytes[s] += bytes;
    }
    report.buffers = std::move(found_);
  }

 private:
  void add(const Step& step) {
    step.for_each_read([&](int v) {
      const int i = index_[static_cast<std::size_t>(v)];
      if (i >= 0) found_[static_cast<std::size_t>(i)].last = now_;
    });
    for (int v : step.outputs) {
      if (v >= 0 && last_.values[static_cast<std::size_t>(v)].place.kind == Place::Kind::arena) add_value(v);
    }
    ++now_;
  }

  void add_value(int v) {
    const BoundValue& value = last_.values[static_cast<std::size_t>(v)];
    auto offset = static_cast<std::int64_t>(value.place.offset);
    for (int block = 0; block < value.place.index; ++block) {
      offset += static_cast<std::int64_t>(last_.blocks[static_cast<std::size_t>(block)]);
    }
    index_[static_cast<std::size_t>(v)] = static_cast<int>(found_.size());
    found_.push_back({last_.program->values[static_cast<std::size_t>(v)]->name,
                      concat(name_of(value.dtype), to_string(value.dims())), static_cast<std::int64_t>(value.bytes()),
                      offset, now_, now_});
  }

  const Binding& last_;
  std::vector<int> index_;  // per value, of its buffer
  std::vector<PlannedBuffer> found_;
  int now_ = 0;
};

/// The largest values that are there when most is in use.
std::string largest_values(const PlanReport& report) {
  constexpr std::size_t kShown = 10;
  const auto peak = std::max_element(report.live_bytes.begin(), report.live_bytes.end());
  if (peak == report.live_bytes.end()) return "";
  const auto step = static_cast<int>(peak - report.live_bytes.begin());
  std::vector<const PlannedBuffer*> there;
  for (const PlannedBuffer& b : report.buffers) {
    if (b.first <= step && step <= b.last) there.push_back(&b);
  }
  std::stable_sort(there.begin(), there.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  if (there.size() > kShown) there.resize(kShown);
  std::string text = concat("most in use at step ", step, ": ", kib(*peak), "\n");
  for (const PlannedBuffer* b : there) {
    text += concat("  ", kib(b->bytes), " %", b->name, ":", b->type, ", steps ", b->first, " to ", b->last, "\n");
  }
  return text;
}

std::string text_of(Parts parts) {
  constexpr std::size_t kLine = 192;
  const Binding& last = *parts.back();
  std::string text;
  text.reserve(kLine * (last.program->steps.size() + 2));
  for (const auto& part : parts) {
    if (part->part > 0) text += concat("  -- sizes found, at most ", part->blocks.back(), " bytes more --\n");
    for (const BoundStep& bound : part->steps) {
      const Step& step = part->program->steps[static_cast<std::size_t>(bound.step)];
      const bool is_late = !bound.kernel && step.kind != StepKind::control;
      text += is_late ? "  late " : "  ";
      add_label(text, *step.node);
      for (int v : step.inputs) add_value(text, *part, v);
      text += " ->";
      for (int v : step.outputs) add_value(text, *part, v);
      text += '\n';
    }
  }
  for (auto i = static_cast<std::size_t>(last.end); i < last.program->steps.size(); ++i) {
    text += "  once sizes are known ";
    add_label(text, *last.program->steps[i].node);
    text += '\n';
  }
  const PlanReport& r = last.report;
  text += concat(r.steps, " steps, ", r.views, " views, ", r.in_place, " in place, ", r.late_steps, " late\n");
  text += concat("arena: ", kib(r.peak_bytes), " planned, ", kib(r.lower_bound_bytes),
                 " lower bound; constants: ", kib(r.constant_bytes), "\n");
  return text;
}

}  // namespace

PlanReport describe_plan(Parts parts) {
  PlanReport report = parts.back()->report;
  Buffers(parts).put_into(report);
  report.text = text_of(parts) + largest_values(report);
  return report;
}

}  // namespace backpass
