#include "plan/arena.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

namespace backpass {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct LiveSet {
  std::size_t bytes = 0;
  int step = 0;
};

LiveSet largest_live_set(std::span<const Lifetime> lifetimes, const Occupied& occupied) {
  int end = 0;
  for (const Lifetime& l : lifetimes) end = std::max(end, l.last);
  std::vector<std::int64_t> change(static_cast<std::size_t>(end) + 2, 0);
  auto add = [&](std::size_t bytes, int first, int last) {
    change[static_cast<std::size_t>(first)] += static_cast<std::int64_t>(rounded(bytes));
    change[static_cast<std::size_t>(last) + 1] -= static_cast<std::int64_t>(rounded(bytes));
  };
  for (const Lifetime& l : lifetimes) add(l.bytes, l.first, l.last);
  for (const Occupied::Buffer& b : occupied.buffers) add(b.bytes, 0, std::min(b.last, end));
  std::int64_t live = 0;
  LiveSet most;
  for (std::size_t s = 0; s < change.size(); ++s) {
    live += change[s];
    if (live > static_cast<std::int64_t>(most.bytes)) most = {static_cast<std::size_t>(live), static_cast<int>(s)};
  }
  return most;
}

struct Placed {
  std::size_t begin, end;
  int first, last;
};

constexpr int kAlways = std::numeric_limits<int>::max();

bool starts_before(const Placed& a, const Placed& b) { return a.begin < b.begin; }

/// Buffers placed so far, by offset.
class Ground {
 public:
  Ground(std::size_t count, const Occupied& occupied) {
    placed_.reserve(count + occupied.buffers.size() + occupied.walls.size());
    for (const Occupied::Buffer& b : occupied.buffers) {
      if (b.bytes > 0) placed_.push_back({b.offset, b.offset + rounded(b.bytes), 0, b.last});
    }
    for (std::size_t wall : occupied.walls) placed_.push_back({wall, wall, 0, kAlways});
    std::sort(placed_.begin(), placed_.end(), starts_before);
  }

  /// Puts a buffer into the lowest gap among those alive at the same time.
  std::size_t put(const Lifetime& l) {
    const std::size_t bytes = rounded(l.bytes);
    std::size_t offset = 0;
    for (const Placed& p : placed_) {
      if (p.last < l.first || l.last < p.first) continue;
      if (p.begin >= offset + bytes) break;
      offset = std::max(offset, p.end);
    }
    Placed p{offset, offset + bytes, l.first, l.last};
    auto at = std::lower_bound(placed_.begin(), placed_.end(), p, starts_before);
    placed_.insert(at, p);
    return offset;
  }

  /// Forgets buffers that ended before this step.
  void forget_before(int step) {
    std::erase_if(placed_, [step](const Placed& p) { return p.last < step; });
  }

 private:
  std::vector<Placed> placed_;
};

/// With `is_by_start`, what has ended cannot meet anything that comes later and need not be looked at again.
ArenaPlan place_in_order(std::span<const Lifetime> lifetimes, const Occupied& occupied,
                         const std::vector<std::size_t>& order, bool is_by_start) {
  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  Ground ground(lifetimes.size(), occupied);
  for (std::size_t i : order) {
    const Lifetime& l = lifetimes[i];
    if (l.bytes == 0) continue;
    if (is_by_start) ground.forget_before(l.first);
    plan.offsets[i] = ground.put(l);
    plan.peak = std::max(plan.peak, plan.offsets[i] + rounded(l.bytes));
  }
  return plan;
}

}  // namespace

ArenaPlan plan_arena(std::span<const Lifetime> lifetimes, const Occupied& occupied) {
  const LiveSet most = largest_live_set(lifetimes, occupied);
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  ArenaPlan best;
  best.peak = std::numeric_limits<std::size_t>::max();
  auto try_order = [&](auto before, bool is_by_start) {
    if (best.peak <= most.bytes + most.bytes / 20) return;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return before(lifetimes[a], lifetimes[b]); });
    ArenaPlan plan = place_in_order(lifetimes, occupied, order, is_by_start);
    if (plan.peak < best.peak) best = std::move(plan);
  };
  auto length = [](const Lifetime& l) { return l.last - l.first; };
  auto is_in_most = [&](const Lifetime& l) { return l.first <= most.step && most.step <= l.last; };
  using L = const Lifetime&;
  try_order([](L a, L b) { return a.first < b.first; }, true);
  try_order([](L a, L b) { return a.bytes > b.bytes; }, false);
  try_order([&](L a, L b) { return length(a) > length(b); }, false);
  try_order([&](L a, L b) { return is_in_most(a) != is_in_most(b) ? is_in_most(a) : length(a) > length(b); }, false);
  try_order([&](L a, L b) { return is_in_most(a) != is_in_most(b) ? is_in_most(a) : a.bytes > b.bytes; }, false);
  best.lower_bound = most.bytes;
  return best;
}

}  // namespace backpass
