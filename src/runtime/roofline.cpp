#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "backpass/profile.hpp"

namespace backpass {

double MachineLimits::gbs(std::int64_t bytes) const {
  for (const Memory& m : memory) {
    if (bytes <= m.bytes) return m.gbs;
  }
  return memory.empty() ? 0 : memory.back().gbs;
}

double MachineLimits::arithmetic_us(std::int64_t flops) const {
  return gflops > 0 ? static_cast<double>(flops) / gflops / 1e3 : 0;
}

double MachineLimits::memory_us(std::int64_t bytes) const {
  const double rate = gbs(bytes);
  return rate > 0 ? static_cast<double>(bytes) / rate / 1e3 : 0;
}

std::string MachineLimits::text() const {
  char number[32];
  auto shown = [&](double rate) {
    std::snprintf(number, sizeof number, "%.1f", rate);
    return std::string(number);
  };
  std::string text = shown(gflops) + " GF/s";
  if (!memory.empty()) text += ", " + shown(memory.front().gbs);
  if (memory.size() > 1) text += " to " + shown(memory.back().gbs);
  if (!memory.empty()) text += " GB/s";
  if (threads > 0) text += ", " + std::to_string(threads) + (threads > 1 ? " threads" : " thread");
  return text;
}

MachineLimits told_limits(double gflops, double gbs, int threads) {
  MachineLimits limits;
  if (gflops <= 0 || gbs <= 0) limits = machine_limits(threads);
  if (gflops > 0) limits.gflops = gflops;
  if (gbs > 0) limits.memory = {{0, gbs}};
  return limits;
}

ProfileSummary summarize(std::span<const StepRecord> records, const MachineLimits& limits, ProfileRows rows) {
  ProfileSummary summary;
  std::map<std::pair<std::string, std::string>, ProfileRow> found;
  for (const StepRecord& r : records) {
    const std::string& shapes = rows == ProfileRows::by_shapes ? r.shapes : std::string();
    ProfileRow& row = found[{r.op, shapes}];
    const double arithmetic = limits.arithmetic_us(r.flops);
    const double memory = limits.memory_us(r.bytes);
    ++row.calls;
    row.duration_us += r.duration_us;
    row.arithmetic_us += arithmetic;
    row.memory_us += memory;
    row.limit_us += std::max(arithmetic, memory);
    row.flops += static_cast<double>(r.flops);
    row.bytes += static_cast<double>(r.bytes);
    summary.duration_us += r.duration_us;
    summary.limit_us += std::max(arithmetic, memory);
  }
  for (auto& [key, row] : found) {
    row.op = key.first;
    row.shapes = key.second;
    summary.rows.push_back(std::move(row));
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.duration_us > b.duration_us; });
  return summary;
}

}  // namespace backpass
