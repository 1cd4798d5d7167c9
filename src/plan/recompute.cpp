#include "plan/recompute.hpp"

#include <algorithm>
#include <numeric>

#include "plan/boundaries.hpp"

namespace backpass {
namespace {

struct State {
  Kept kept;
  Rehearsal::Result result;
};

class Search {
 public:
  explicit Search(const Outline& outline) : outline_(outline), rehearsal_(outline), all_(keep_all(outline)) {}

  /// Gives up one value after another where most memory is needed until the peak fits, or nothing helps any more.
  State drop_until(std::size_t target) {
    State state{all_, rehearsal_.run(all_)};
    Kept tried(outline_.values.size(), 0);
    while (state.result.peak > target) {
      const int v = best_to_drop(state, tried);
      if (v < 0) break;
      tried[static_cast<std::size_t>(v)] = 1;
      state.kept[static_cast<std::size_t>(v)] = 0;
      const Rehearsal::Result next = rehearsal_.run(state.kept);
      if (next.peak <= state.result.peak) {
        state.result = next;
      } else {
        state.kept[static_cast<std::size_t>(v)] = 1;
        rehearsal_.run(state.kept);  // what the next choice is made by
      }
    }
    return state;
  }

  /// Every so many boundaries, and nothing else.
  std::vector<State> between_blocks() {
    std::vector<State> states;
    const std::vector<std::vector<int>> boundaries = find_boundaries(outline_);
    for (std::size_t stride : {1U, 2U, 3U, 4U, 6U, 8U, 12U}) {
      if (stride > boundaries.size()) break;
      State state{Kept(outline_.values.size(), 0), {}};
      for (std::size_t i = stride - 1; i < boundaries.size(); i += stride) {
        for (int v : boundaries[i]) {
          if (!outline_.values[static_cast<std::size_t>(v)].is_unwanted) state.kept[static_cast<std::size_t>(v)] = 1;
        }
      }
      state.result = rehearsal_.run(state.kept);
      states.push_back(std::move(state));
    }
    return states;
  }

  /// Keeps more as long as it fits: first what saves most per byte.
  void take_up(State& state, std::size_t target) {
    for (int round = 0; round < 2; ++round) {
      const std::vector<int> order = best_to_keep(state);
      bool has_changed = false;
      for (int v : order) {
        char& is_kept = state.kept[static_cast<std::size_t>(v)];
        is_kept = 1;
        const Rehearsal::Result next = rehearsal_.run(state.kept);
        if (next.peak <= target && next.cost < state.result.cost) {
          state.result = next;
          has_changed = true;
        } else {
          is_kept = 0;
        }
      }
      if (!has_changed) return;
    }
  }

 private:
  int best_to_drop(const State& state, const Kept& tried) {
    int best = -1;
    double most = 0;
    int longest = 0;
    for (std::size_t i = 0; i < outline_.values.size(); ++i) {
      const int v = static_cast<int>(i);
      if (!outline_.values[i].is_choosable || state.kept[i] == 0 || tried[i] != 0) continue;
      if (!rehearsal_.is_alive(v, state.result.peak_at)) continue;
      const double cost = rehearsal_.cost_of_repeating(v, state.kept);
      const double gain = static_cast<double>(outline_.values[i].bytes) / (cost + 1);
      const int lifetime = rehearsal_.lifetime(v);
      if (gain < most || (gain == most && lifetime <= longest)) continue;
      best = v, most = gain, longest = lifetime;
    }
    return best;
  }

  std::vector<int> best_to_keep(State& state) {
    rehearsal_.run(state.kept);
    std::vector<int> candidates;
    for (std::size_t i = 0; i < outline_.values.size(); ++i) {
      const Outline::Value& value = outline_.values[i];
      if (value.is_choosable && !value.is_unwanted && state.kept[i] == 0 && rehearsal_.is_repeated(value.producer)) {
        candidates.push_back(static_cast<int>(i));
      }
    }
    std::vector<double> gains(outline_.values.size(), 0);
    for (int v : candidates) {
      char& is_kept = state.kept[static_cast<std::size_t>(v)];
      is_kept = 1;
      const double saved = state.result.cost - rehearsal_.cost(state.kept);
      is_kept = 0;
      const Outline::Value& value = outline_.values[static_cast<std::size_t>(v)];
      gains[static_cast<std::size_t>(v)] = saved / static_cast<double>(value.bytes);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
      return gains[static_cast<std::size_t>(a)] > gains[static_cast<std::size_t>(b)];
    });
    return candidates;
  }

  const Outline& outline_;
  Rehearsal rehearsal_;
  Kept all_;
};

/// What a search from one of its beginnings finds: 0 is everything, the others are blocks.
class Beginnings {
 public:
  explicit Beginnings(Search& search) : search_(search), blocks_(search.between_blocks()) {}

  std::size_t count() const { return 1 + blocks_.size(); }

  std::optional<State> search(std::size_t beginning, std::size_t target) {
    State state = beginning == 0 ? search_.drop_until(target) : blocks_[beginning - 1];
    if (state.result.peak > target) return std::nullopt;
    search_.take_up(state, target);
    return state;
  }

  /// As little memory as each can do with, whatever the budget.
  State least(std::size_t beginning) { return beginning == 0 ? search_.drop_until(0) : blocks_[beginning - 1]; }

 private:
  Search& search_;
  std::vector<State> blocks_;
};

struct Candidate {
  std::size_t beginning;
  State state;
};

std::vector<Candidate> cheapest_first(Beginnings& beginnings, std::size_t target) {
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < beginnings.count(); ++i) {
    if (std::optional<State> state = beginnings.search(i, target)) found.push_back({i, std::move(*state)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.state.result.cost < b.state.result.cost; });
  return found;
}

}  // namespace

Kept keep_all(const Outline& outline) {
  Kept kept(outline.values.size(), 0);
  for (const Outline::Step& step : outline.steps) {
    if (!step.runs || step.is_forward) continue;
    for (int v : step.inputs) {
      const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
      if (outline.values[root].is_choosable && !outline.values[root].is_unwanted) kept[root] = 1;
    }
  }
  return kept;
}

RecomputeResult choose_recomputation(const Outline& outline, std::size_t budget, const MeasurePeak& measure) {
  Search search(outline);
  Beginnings beginnings(search);
  RecomputeResult result;
  auto take_if_it_fits = [&](const State& state) {
    const std::size_t peak = measure(state.kept);
    if (peak <= budget) result.found = Recomputation{state.kept, peak, state.result.cost};
    return peak;
  };
  // Places in an arena leave gaps, which no two plans have in common: what does not fit by them is looked for again
  // with less.
  constexpr std::size_t kCandidates = 2, kTries = 5;
  std::vector<Candidate> candidates = cheapest_first(beginnings, budget);
  if (candidates.size() > kCandidates) candidates.resize(kCandidates);
  for (std::size_t i = 0; i < kTries; ++i) {
    const std::size_t target = budget - budget * i / 25;
    for (Candidate& candidate : candidates) {
      if (i > 0) {
        std::optional<State> state = beginnings.search(candidate.beginning, target);
        if (!state) continue;
        candidate.state = std::move(*state);
      }
      take_if_it_fits(candidate.state);
      if (result.found) return result;
    }
  }
  for (std::size_t i = 0; i < beginnings.count(); ++i) {
    const std::size_t peak = take_if_it_fits(beginnings.least(i));
    if (result.found) return result;
    if (result.least_peak == 0 || peak < result.least_peak) result.least_peak = peak;
  }
  return result;
}

}  // namespace backpass
