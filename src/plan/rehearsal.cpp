#include "plan/rehearsal.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/boundaries.hpp"

namespace backpass {

Fate fate_of_step(const Outline& outline, std::size_t step, const Fates& fates) {
  Fate longest = Fate::made_for_reader;
  for (int v : outline.steps[step].outputs) {
    const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
    if (outline.values[root].is_choosable && fates[root] != Fate::kept) longest = std::min(longest, fates[root]);
  }
  return longest;
}

Rehearsal::Rehearsal(const Outline& outline) : outline_(outline), epochs_(find_epochs(outline)) {}

bool Rehearsal::is_available(int value, const Fates& fates) const {
  const auto root = static_cast<std::size_t>(outline_.values[static_cast<std::size_t>(value)].root);
  return !outline_.values[root].is_choosable || fates[root] == Fate::kept;
}

/// Whether what the step gave when it ran again is still there.
bool Rehearsal::is_there(int step, const Moment& now, const Fates& fates) const {
  const auto s = static_cast<std::size_t>(step);
  return made_[s].reader >= 0 && made_[s].serves(now, fate_of_step(outline_, s, fates));
}

/// Appends to cone_ the step and those before it that have to run again with it, as far as `takes` holds for them.
template <class F>
void Rehearsal::collect_cone(int step, const Fates& fates, const F& takes) {
  todo_.assign(1, step);
  while (!todo_.empty()) {
    const int s = todo_.back();
    todo_.pop_back();
    if (!takes(s)) continue;
    cone_.push_back(s);
    for (int v : outline_.steps[static_cast<std::size_t>(s)].inputs) {
      if (!is_available(v, fates)) todo_.push_back(outline_.values[static_cast<std::size_t>(v)].producer);
    }
  }
}

void Rehearsal::add_repeats(int reader, const Fates& fates) {
  const Moment now{epochs_[static_cast<std::size_t>(reader)], reader};
  cone_.clear();
  for (int v : outline_.steps[static_cast<std::size_t>(reader)].inputs) {
    if (is_available(v, fates)) continue;
    collect_cone(outline_.values[static_cast<std::size_t>(v)].producer, fates, [&](int s) {
      if (is_there(s, now, fates)) return false;
      made_[static_cast<std::size_t>(s)] = now;
      return true;
    });
  }
  std::sort(cone_.begin(), cone_.end());
  for (int s : cone_) {
    add_entry(s, true, fates);
    ++repeats_[static_cast<std::size_t>(s)];
  }
}

void Rehearsal::add_entry(int s, bool is_repeat, const Fates& fates) {
  const Outline::Step& step = outline_.steps[static_cast<std::size_t>(s)];
  Entry entry{s, is_repeat, numbers_.size(), 0};
  const bool is_first = step.is_forward && !is_repeat;
  for (int v : step.inputs) {
    numbers_.push_back(is_first || is_available(v, fates) ? v : newest_[static_cast<std::size_t>(v)]);
  }
  entry.writes = numbers_.size();
  for (int v : step.outputs) {
    if (is_repeat) {
      newest_[static_cast<std::size_t>(v)] = static_cast<int>(value_of_.size());
      value_of_.push_back(v);
    }
    numbers_.push_back(newest_[static_cast<std::size_t>(v)]);
  }
  walk_.push_back(entry);
}

std::span<const int> Rehearsal::reads(const Entry& entry) const {
  return std::span(numbers_).subspan(entry.reads, entry.writes - entry.reads);
}

std::span<const int> Rehearsal::writes(const Entry& entry) const {
  return std::span(numbers_).subspan(entry.writes, outline_.steps[static_cast<std::size_t>(entry.step)].outputs.size());
}

void Rehearsal::find_last_reads(Result& result) {
  last_read_.assign(value_of_.size(), -1);
  is_needed_.assign(walk_.size(), 0);
  const int end = static_cast<int>(walk_.size());
  for (std::size_t v = 0; v < outline_.values.size(); ++v) {
    if (outline_.values[v].is_kept_to_the_end) last_read_[v] = end;
  }
  for (std::size_t i = walk_.size(); i-- > 0;) {
    const std::span<const int> made = writes(walk_[i]);
    const bool is_read =
        std::any_of(made.begin(), made.end(), [&](int n) { return last_read_[static_cast<std::size_t>(n)] >= 0; });
    if (!is_read) continue;
    is_needed_[i] = 1;
    result.cost += outline_.steps[static_cast<std::size_t>(walk_[i].step)].cost;
    for (int n : reads(walk_[i])) {
      int& last = last_read_[static_cast<std::size_t>(n)];
      last = std::max(last, static_cast<int>(i));
    }
  }
}

bool Rehearsal::reuse_input(const Outline::Step& step, const Entry& entry, int at) {
  if (step.in_place == Outline::InPlace::never || step.outputs.size() != 1) return false;
  const std::size_t bytes = outline_.values[static_cast<std::size_t>(step.outputs[0])].bytes;
  const auto out = static_cast<std::size_t>(writes(entry)[0]);
  const std::span<const int> inputs = reads(entry);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (step.in_place == Outline::InPlace::first && static_cast<int>(i) != step.in_place_input) continue;
    const int storage = storage_of_[static_cast<std::size_t>(inputs[i])];
    if (storage < 0) continue;
    Storage& found = storages_[static_cast<std::size_t>(storage)];
    if (found.last != at || found.bytes != bytes) continue;
    storage_of_[out] = storage;
    found.last = std::max(at, last_read_[out]);
    return true;
  }
  return false;
}

void Rehearsal::place_outputs(const Outline::Step& step, const Entry& entry, int at) {
  const std::span<const int> made = writes(entry);
  if (step.is_view) {
    const int storage = storage_of_[static_cast<std::size_t>(reads(entry)[0])];
    const auto out = static_cast<std::size_t>(made[0]);
    storage_of_[out] = storage;
    if (storage < 0) return;
    int& last = storages_[static_cast<std::size_t>(storage)].last;
    last = std::max(last, last_read_[out]);
    return;
  }
  for (std::size_t k = 0; k < made.size(); ++k) {
    const std::size_t bytes = outline_.values[static_cast<std::size_t>(step.outputs[k])].bytes;
    if (bytes == 0 || reuse_input(step, entry, at)) continue;
    const auto out = static_cast<std::size_t>(made[k]);
    storage_of_[out] = static_cast<int>(storages_.size());
    storages_.push_back({bytes, at, std::max(at, last_read_[out])});
  }
}

void Rehearsal::place() {
  storage_of_.assign(value_of_.size(), -1);
  storages_.clear();
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    if (is_needed_[i] == 0) continue;
    const Outline::Step& step = outline_.steps[static_cast<std::size_t>(walk_[i].step)];
    const int at = static_cast<int>(i);
    place_outputs(step, walk_[i], at);
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

void Rehearsal::walk_through(const Fates& fates) {
  walk_.clear();
  numbers_.clear();
  newest_.resize(outline_.values.size());
  std::iota(newest_.begin(), newest_.end(), 0);
  value_of_ = newest_;
  made_.assign(outline_.steps.size(), {});
  repeats_.assign(outline_.steps.size(), 0);
  for (std::size_t s = 0; s < outline_.steps.size(); ++s) {
    const Outline::Step& step = outline_.steps[s];
    if (!step.runs) continue;
    if (!step.is_forward) add_repeats(static_cast<int>(s), fates);
    add_entry(static_cast<int>(s), false, fates);
  }
  walked_ += walk_.size();
}

double Rehearsal::cost(const Fates& fates) {
  walk_through(fates);
  Result result;
  find_last_reads(result);
  return result.cost;
}

Rehearsal::Result Rehearsal::run(const Fates& fates) {
  walk_through(fates);
  Result result;
  find_last_reads(result);
  place();
  find_peak(result);
  return result;
}

bool Rehearsal::is_alive(int value, int position) const {
  const int storage = storage_of_[static_cast<std::size_t>(value)];
  if (storage < 0) return false;
  const Storage& s = storages_[static_cast<std::size_t>(storage)];
  return s.first <= position && position <= s.last;
}

std::vector<int> Rehearsal::copies_alive(int position) const {
  std::vector<int> found;
  for (std::size_t n = outline_.values.size(); n < value_of_.size(); ++n) {
    if (is_alive(static_cast<int>(n), position)) found.push_back(value_of_[n]);
  }
  return found;
}

int Rehearsal::lifetime(int value) const {
  const int storage = storage_of_[static_cast<std::size_t>(value)];
  return storage < 0
             ? 0
             : storages_[static_cast<std::size_t>(storage)].last - storages_[static_cast<std::size_t>(storage)].first;
}

double Rehearsal::cost_of_repeating(int value, const Fates& fates) {
  const int producer = outline_.values[static_cast<std::size_t>(value)].producer;
  marks_.assign(outline_.steps.size(), 0);
  cone_.clear();
  collect_cone(producer, fates, [&](int step) {
    const auto s = static_cast<std::size_t>(step);
    const bool is_there =
        step != producer && made_[s].reader >= 0 && fate_of_step(outline_, s, fates) == Fate::made_again;
    return !is_there && std::exchange(marks_[s], char{1}) == 0;
  });
  double cost = 0;
  for (int s : cone_) cost += outline_.steps[static_cast<std::size_t>(s)].cost;
  return cost;
}

}  // namespace backpass
