#include "plan/recompute.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/boundaries.hpp"

namespace backpass {
namespace {

struct State {
  Fates fates;
  Rehearsal::Result result;
};

// Steps to go through in search of a cheaper choice once there is one, about a second of them.
constexpr std::size_t kEnoughSteps = 10'000'000;

class Search {
 public:
  explicit Search(const Outline& outline) : outline_(outline), rehearsal_(outline) {}

  bool is_long() const { return rehearsal_.walked() > kEnoughSteps; }

  State everything() {
    State state{keep_all(outline_), {}};
    state.result = rehearsal_.run(state.fates);
    return state;
  }

  /// Every so many boundaries, and nothing else.
  State between_blocks(const std::vector<Boundary>& boundaries, std::size_t stride, Fate others) {
    State state{Fates(outline_.values.size(), others), {}};
    for (std::size_t i = stride - 1; i < boundaries.size(); i += stride) {
      for (int v : boundaries[i].values) {
        if (!outline_.values[static_cast<std::size_t>(v)].is_unwanted) fate(state, v) = Fate::kept;
      }
    }
    state.result = rehearsal_.run(state.fates);
    return state;
  }

  /// Gives up one value after another where most memory is needed until the peak fits, or nothing helps any more.
  void drop_until(State& state, std::size_t target) {
    Tried tried(outline_.values.size());
    rehearsal_.run(state.fates);
    while (state.result.peak > target) {
      const std::optional<Drop> drop = best_to_drop(state, tried);
      if (!drop) return;
      tried[static_cast<std::size_t>(drop->value)].insert(drop->to);
      const Fate before = std::exchange(fate(state, drop->value), drop->to);
      const Rehearsal::Result next = rehearsal_.run(state.fates);
      if (next.peak <= state.result.peak) {
        state.result = next;
      } else {
        fate(state, drop->value) = before;
        rehearsal_.run(state.fates);  // what the next choice is made by
      }
    }
  }

  /// Keeps others instead of a value, where that costs less.
  void exchange(State& state, std::size_t target) {
    for (std::size_t v = 0; v < outline_.values.size(); ++v) {
      if (is_long()) return;
      if (!outline_.values[v].is_choosable || state.fates[v] != Fate::kept) continue;
      State other = state;
      other.fates[v] = Fate::made_again;
      other.result = rehearsal_.run(other.fates);
      if (other.result.peak > target || other.result.cost == state.result.cost) continue;
      take_up(other, target, static_cast<int>(v));
      if (other.result.cost < state.result.cost) state = std::move(other);
    }
  }

  /// Keeps more, but not `except`, as long as it fits: first what saves most per byte.
  void take_up(State& state, std::size_t target, int except = -1) {
    for (int round = 0; round == 0 || (round == 1 && !is_long()); ++round) {
      bool has_changed = false;
      for (int v : best_to_keep(state)) {
        if (v == except) continue;
        const bool is_unwanted = outline_.values[static_cast<std::size_t>(v)].is_unwanted;
        for (Fate to : {Fate::kept, Fate::made_again, Fate::made_each_time}) {
          if (to >= fate(state, v) || (to == Fate::kept && is_unwanted)) continue;
          has_changed = improves(state, v, to, target) || has_changed;
        }
      }
      if (!has_changed) return;
    }
  }

 private:
  using Tried = std::vector<std::set<Fate>>;
  struct Drop {
    int value;
    Fate to;
  };

  static Fate& fate(State& state, int v) { return state.fates[static_cast<std::size_t>(v)]; }

  /// Changes the fate if the result fits and costs less.
  bool improves(State& state, int v, Fate to, std::size_t target) {
    const Fate before = std::exchange(fate(state, v), to);
    const Rehearsal::Result next = rehearsal_.run(state.fates);
    const bool is_better = next.peak <= target && next.cost < state.result.cost;
    if (is_better) {
      state.result = next;
    } else {
      fate(state, v) = before;
    }
    return is_better;
  }

  /// The next fate that was not tried.
  static std::optional<Fate> after(Fate fate, const std::set<Fate>& tried) {
    for (Fate next : {Fate::made_again, Fate::made_each_time, Fate::made_for_reader}) {
      if (next > fate && tried.count(next) == 0) return next;
    }
    return std::nullopt;
  }

  std::vector<Drop> to_drop(const State& state, const Tried& tried) const {
    std::vector<int> there = rehearsal_.copies_alive(state.result.peak_at);
    for (std::size_t v = 0; v < outline_.values.size(); ++v) {
      const bool is_kept = outline_.values[v].is_choosable && state.fates[v] == Fate::kept;
      if (is_kept && rehearsal_.is_alive(static_cast<int>(v), state.result.peak_at))
        there.push_back(static_cast<int>(v));
    }
    std::vector<Drop> found;
    for (int v : there) {
      const auto i = static_cast<std::size_t>(v);
      if (!outline_.values[i].is_choosable) continue;
      if (const std::optional<Fate> next = after(state.fates[i], tried[i])) found.push_back({v, *next});
    }
    return found;
  }

  std::optional<Drop> best_to_drop(const State& state, const Tried& tried) {
    std::optional<Drop> best;
    double most = 0;
    int longest = 0;
    for (const Drop& drop : to_drop(state, tried)) {
      const double cost = rehearsal_.cost_of_repeating(drop.value, state.fates);
      const double gain = static_cast<double>(outline_.values[static_cast<std::size_t>(drop.value)].bytes) / (cost + 1);
      const int lifetime = rehearsal_.lifetime(drop.value);
      if (gain < most || (gain == most && lifetime <= longest)) continue;
      best = drop, most = gain, longest = lifetime;
    }
    return best;
  }

  std::vector<int> best_to_keep(State& state) {
    rehearsal_.run(state.fates);
    std::vector<int> candidates;
    for (std::size_t i = 0; i < outline_.values.size(); ++i) {
      const Outline::Value& value = outline_.values[i];
      if (value.is_choosable && state.fates[i] != Fate::kept && rehearsal_.repeats(value.producer) > 0) {
        candidates.push_back(static_cast<int>(i));
      }
    }
    std::vector<double> gains(outline_.values.size(), 0);
    for (int v : candidates) {
      const Fate before = std::exchange(fate(state, v), Fate::kept);
      const double saved = state.result.cost - rehearsal_.cost(state.fates);
      fate(state, v) = before;
      gains[static_cast<std::size_t>(v)] =
          saved / static_cast<double>(outline_.values[static_cast<std::size_t>(v)].bytes);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
      return gains[static_cast<std::size_t>(a)] > gains[static_cast<std::size_t>(b)];
    });
    return candidates;
  }

  const Outline& outline_;
  Rehearsal rehearsal_;
};

/// What searches begin with: 0 is everything, the others are blocks.
class Beginnings {
 public:
  Beginnings(const Outline& outline, Search& search) : search_(search) {
    states_.push_back(search.everything());
    const std::vector<Boundary> boundaries = find_boundaries(outline);
    for (std::size_t stride : {1U, 2U, 3U, 4U, 6U, 8U, 12U}) {
      if (stride > boundaries.size()) break;
      states_.push_back(search.between_blocks(boundaries, stride, Fate::made_again));
      if (stride > 1) states_.push_back(search.between_blocks(boundaries, stride, Fate::made_each_time));
    }
    states_.push_back(search.between_blocks(boundaries, boundaries.size() + 1, Fate::made_each_time));
  }

  std::size_t count() const { return states_.size(); }
  bool is_long() const { return search_.is_long(); }

  std::optional<State> search(std::size_t beginning, std::size_t target) {
    State state = states_[beginning];
    search_.drop_until(state, target);
    if (state.result.peak > target) return std::nullopt;
    search_.take_up(state, target);
    return state;
  }

  /// As little memory as each can do with, whatever the budget.
  State least(std::size_t beginning) {
    State state = states_[beginning];
    search_.drop_until(state, 0);
    search_.take_up(state, state.result.peak);
    return state;
  }

 private:
  Search& search_;
  std::vector<State> states_;
};

struct Candidate {
  std::size_t beginning;
  State state;
};

std::vector<Candidate> cheapest_first(Beginnings& beginnings, std::size_t target) {
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < beginnings.count(); ++i) {
    if (!found.empty() && beginnings.is_long()) break;
    if (std::optional<State> state = beginnings.search(i, target)) found.push_back({i, std::move(*state)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.state.result.cost < b.state.result.cost; });
  return found;
}

}  // namespace

Fates keep_all(const Outline& outline) {
  Fates fates(outline.values.size(), Fate::made_again);
  for (const Outline::Step& step : outline.steps) {
    if (!step.runs || step.is_forward) continue;
    for (int v : step.inputs) {
      const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
      if (outline.values[root].is_choosable && !outline.values[root].is_unwanted) fates[root] = Fate::kept;
    }
  }
  return fates;
}

namespace {

class Choosing {
 public:
  Choosing(const Outline& outline, std::size_t budget, const MeasurePeak& measure)
      : budget_(budget), measure_(measure), search_(outline), beginnings_(outline, search_) {}

  RecomputeResult run() {
    if (!try_cheapest()) try_least();
    return std::move(result_);
  }

 private:
  /// Places in an arena leave gaps, which no two plans have in common: what does not fit by them is looked for again
  /// with less.
  bool try_cheapest() {
    constexpr std::size_t kCandidates = 2, kTries = 5;
    std::vector<Candidate> candidates = cheapest_first(beginnings_, budget_);
    if (candidates.size() > kCandidates) candidates.resize(kCandidates);
    for (std::size_t i = 0; i < kTries; ++i) {
      const std::size_t target = budget_ - budget_ * i / 25;
      for (Candidate& candidate : candidates) {
        if (i > 0) {
          std::optional<State> state = beginnings_.search(candidate.beginning, target);
          if (!state) continue;
          candidate.state = std::move(*state);
        }
        if (!take(candidate.state)) continue;
        improve(candidate.state, target);
        return true;
      }
    }
    return false;
  }

  void improve(State state, std::size_t target) {
    search_.exchange(state, target);
    const bool is_cheaper = state.result.cost < result_.chosen.cost;
    if (!is_cheaper) return;
    const std::size_t peak = measure_(state.fates);
    if (peak <= budget_) result_.chosen = {state.fates, peak, state.result.cost};
  }

  void try_least() {
    for (std::size_t i = 0; i < beginnings_.count(); ++i) {
      if (take(beginnings_.least(i))) return;
    }
  }

  /// Whether it fits; if nothing does, the smallest is to be found.
  bool take(const State& state) {
    const std::size_t peak = measure_(state.fates);
    result_.fits = peak <= budget_;
    const bool is_less =
        peak < result_.chosen.peak || (peak == result_.chosen.peak && state.result.cost < result_.chosen.cost);
    if (result_.fits || result_.chosen.fates.empty() || is_less) {
      result_.chosen = {state.fates, peak, state.result.cost};
    }
    return result_.fits;
  }

  std::size_t budget_;
  const MeasurePeak& measure_;
  Search search_;
  Beginnings beginnings_;
  RecomputeResult result_;
};

}  // namespace

RecomputeResult choose_recomputation(const Outline& outline, std::size_t budget, const MeasurePeak& measure) {
  return Choosing(outline, budget, measure).run();
}

}  // namespace backpass
