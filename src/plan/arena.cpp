#include "plan/arena.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace backpass {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t largest_live_set(std::span<const Lifetime> lifetimes) {
  int end = 0;
  for (const Lifetime& l : lifetimes) end = std::max(end, l.last);
  std::vector<std::int64_t> change(static_cast<std::size_t>(end) + 2, 0);
  for (const Lifetime& l : lifetimes) {
    change[static_cast<std::size_t>(l.first)] += static_cast<std::int64_t>(rounded(l.bytes));
    change[static_cast<std::size_t>(l.last) + 1] -= static_cast<std::int64_t>(rounded(l.bytes));
  }
  std::int64_t live = 0;
  std::int64_t most = 0;
  for (std::int64_t c : change) most = std::max(most, live += c);
  return static_cast<std::size_t>(most);
}

struct Placed {
  std::size_t begin, end;
  int first, last;
};

// Lowest gap among buffers alive at the same time; `placed` is kept sorted by offset.
std::size_t lowest_fit(const std::vector<Placed>& placed, const Lifetime& l) {
  std::size_t offset = 0;
  for (const Placed& p : placed) {
    if (p.last < l.first || l.last < p.first) continue;
    if (p.begin >= offset + rounded(l.bytes)) break;
    offset = std::max(offset, p.end);
  }
  return offset;
}

ArenaPlan place_in_order(std::span<const Lifetime> lifetimes, const std::vector<std::size_t>& order) {
  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  std::vector<Placed> placed;
  placed.reserve(lifetimes.size());
  for (std::size_t i : order) {
    const Lifetime& l = lifetimes[i];
    if (l.bytes == 0) continue;
    std::size_t offset = lowest_fit(placed, l);
    plan.offsets[i] = offset;
    Placed p{offset, offset + rounded(l.bytes), l.first, l.last};
    placed.insert(std::lower_bound(placed.begin(), placed.end(), p,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  p);
    plan.peak = std::max(plan.peak, p.end);
  }
  return plan;
}

}  // namespace

ArenaPlan plan_arena(std::span<const Lifetime> lifetimes) {
  std::size_t bound = largest_live_set(lifetimes);
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto try_order = [&](auto before) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return before(lifetimes[a], lifetimes[b]); });
    return place_in_order(lifetimes, order);
  };
  auto good = [&](const ArenaPlan& p) { return p.peak <= bound + bound / 20; };
  ArenaPlan best = try_order([](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; });
  if (!good(best)) {
    ArenaPlan other = try_order([](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    if (other.peak < best.peak) best = std::move(other);
  }
  if (!good(best)) {
    ArenaPlan other =
        try_order([](const Lifetime& a, const Lifetime& b) { return a.last - a.first > b.last - b.first; });
    if (other.peak < best.peak) best = std::move(other);
  }
  best.lower_bound = bound;
  return best;
}

}  // namespace backpass
