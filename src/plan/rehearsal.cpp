#include "plan/rehearsal.hpp"

#include <algorithm>

namespace backpass {

Rehearsal::Rehearsal(const Outline& outline) : outline_(outline), marks_(outline.steps.size(), 0) {}

bool Rehearsal::is_available(int value, const Kept& kept) const {
  const auto root = static_cast<std::size_t>(outline_.values[static_cast<std::size_t>(value)].root);
  return !outline_.values[root].is_choosable || kept[root] != 0;
}

/// Appends to cone_ the step and those before it that have to run again with it, but for those marked in `seen`.
void Rehearsal::collect_cone(int step, const Kept& kept, std::vector<char>& seen) {
  todo_.assign(1, step);
  while (!todo_.empty()) {
    const int s = todo_.back();
    todo_.pop_back();
    if (seen[static_cast<std::size_t>(s)] != 0) continue;
    seen[static_cast<std::size_t>(s)] = 1;
    cone_.push_back(s);
    for (int v : outline_.steps[static_cast<std::size_t>(s)].inputs) {
      if (!is_available(v, kept)) todo_.push_back(outline_.values[static_cast<std::size_t>(v)].producer);
    }
  }
}

void Rehearsal::add_repeats(const std::vector<int>& needed, const Kept& kept) {
  cone_.clear();
  for (int v : needed) {
    if (!is_available(v, kept)) {
      collect_cone(outline_.values[static_cast<std::size_t>(v)].producer, kept, repeated_);
    }
  }
  std::sort(cone_.begin(), cone_.end());
  for (int s : cone_) walk_.push_back({s, true});
}

/// Values that are made again come behind the others.
int Rehearsal::number(int value, bool is_forward, const Kept& kept) const {
  return is_forward || is_available(value, kept) ? value : value + static_cast<int>(outline_.values.size());
}

void Rehearsal::find_last_reads(const Kept& kept, Result& result) {
  const auto count = outline_.values.size();
  last_read_.assign(2 * count, -1);
  is_needed_.assign(walk_.size(), 0);
  const int end = static_cast<int>(walk_.size());
  for (std::size_t v = 0; v < count; ++v) {
    if (outline_.values[v].is_kept_to_the_end) last_read_[v] = end;
  }
  for (std::size_t i = walk_.size(); i-- > 0;) {
    const Outline::Step& step = outline_.steps[static_cast<std::size_t>(walk_[i].step)];
    const std::size_t shift = walk_[i].is_repeat ? count : 0;
    const bool is_read = std::any_of(step.outputs.begin(), step.outputs.end(),
                                     [&](int v) { return last_read_[static_cast<std::size_t>(v) + shift] >= 0; });
    if (!is_read) continue;
    is_needed_[i] = 1;
    result.cost += step.cost;
    for (int v : step.inputs) {
      int& last = last_read_[static_cast<std::size_t>(number(v, step.is_forward && !walk_[i].is_repeat, kept))];
      last = std::max(last, static_cast<int>(i));
    }
  }
}

bool Rehearsal::reuse_input(const Outline::Step& step, bool reads_kept, int out, int at, const Kept& kept) {
  if (step.in_place == Outline::InPlace::never || step.outputs.size() != 1) return false;
  const std::size_t bytes = outline_.values[static_cast<std::size_t>(step.outputs[0])].bytes;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    if (step.in_place == Outline::InPlace::first && static_cast<int>(i) != step.in_place_input) continue;
    const int storage = storage_of_[static_cast<std::size_t>(number(step.inputs[i], reads_kept, kept))];
    if (storage < 0) continue;
    Storage& found = storages_[static_cast<std::size_t>(storage)];
    if (found.last != at || found.bytes != bytes) continue;
    storage_of_[static_cast<std::size_t>(out)] = storage;
    found.last = std::max(at, last_read_[static_cast<std::size_t>(out)]);
    return true;
  }
  return false;
}

void Rehearsal::place_outputs(const Outline::Step& step, const Entry& entry, int at, const Kept& kept) {
  const std::size_t shift = entry.is_repeat ? outline_.values.size() : 0;
  const bool is_forward = step.is_forward && !entry.is_repeat;
  if (step.is_view) {
    const int storage = storage_of_[static_cast<std::size_t>(number(step.inputs[0], is_forward, kept))];
    const std::size_t out = static_cast<std::size_t>(step.outputs[0]) + shift;
    storage_of_[out] = storage;
    if (storage < 0) return;
    int& last = storages_[static_cast<std::size_t>(storage)].last;
    last = std::max(last, last_read_[out]);
    return;
  }
  for (int v : step.outputs) {
    const std::size_t bytes = outline_.values[static_cast<std::size_t>(v)].bytes;
    const std::size_t out = static_cast<std::size_t>(v) + shift;
    if (bytes == 0 || reuse_input(step, is_forward, static_cast<int>(out), at, kept)) continue;
    storage_of_[out] = static_cast<int>(storages_.size());
    storages_.push_back({bytes, at, std::max(at, last_read_[out])});
  }
}

void Rehearsal::place(const Kept& kept) {
  storage_of_.assign(2 * outline_.values.size(), -1);
  storages_.clear();
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    if (is_needed_[i] == 0) continue;
    const Outline::Step& step = outline_.steps[static_cast<std::size_t>(walk_[i].step)];
    place_outputs(step, walk_[i], static_cast<int>(i), kept);
    const int at = static_cast<int>(i);
    if (step.scratch > 0) storages_.push_back({step.scratch, at, at});
  }
}

void Rehearsal::find_peak(Result& result) {
  change_.assign(walk_.size() + 2, 0);
  for (const Storage& s : storages_) {
    change_[static_cast<std::size_t>(s.first)] += static_cast<long long>(s.bytes);
    change_[static_cast<std::size_t>(s.last) + 1] -= static_cast<long long>(s.bytes);
  }
  long long live = 0;
  for (std::size_t i = 0; i < change_.size(); ++i) {
    live += change_[i];
    if (live <= static_cast<long long>(result.peak)) continue;
    result.peak = static_cast<std::size_t>(live);
    result.peak_at = static_cast<int>(i);
  }
}

void Rehearsal::walk_through(const Kept& kept) {
  walk_.clear();
  repeated_.assign(outline_.steps.size(), 0);
  for (std::size_t s = 0; s < outline_.steps.size(); ++s) {
    const Outline::Step& step = outline_.steps[s];
    if (!step.runs) continue;
    if (!step.is_forward) add_repeats(step.inputs, kept);
    walk_.push_back({static_cast<int>(s), false});
  }
}

double Rehearsal::cost(const Kept& kept) {
  walk_through(kept);
  Result result;
  find_last_reads(kept, result);
  return result.cost;
}

Rehearsal::Result Rehearsal::run(const Kept& kept) {
  walk_through(kept);
  Result result;
  find_last_reads(kept, result);
  place(kept);
  find_peak(result);
  return result;
}

bool Rehearsal::is_alive(int value, int position) const {
  const int storage = storage_of_[static_cast<std::size_t>(value)];
  if (storage < 0) return false;
  const Storage& s = storages_[static_cast<std::size_t>(storage)];
  return s.first <= position && position <= s.last;
}

int Rehearsal::lifetime(int value) const {
  const int storage = storage_of_[static_cast<std::size_t>(value)];
  return storage < 0
             ? 0
             : storages_[static_cast<std::size_t>(storage)].last - storages_[static_cast<std::size_t>(storage)].first;
}

double Rehearsal::cost_of_repeating(int value, const Kept& kept) {
  cone_.clear();
  marks_ = repeated_;
  collect_cone(outline_.values[static_cast<std::size_t>(value)].producer, kept, marks_);
  double cost = 0;
  for (int s : cone_) cost += outline_.steps[static_cast<std::size_t>(s)].cost;
  return cost;
}

}  // namespace backpass
