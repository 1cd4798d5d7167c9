#include <array>
#include <bit>
#include <utility>

#include "backpass/error.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

constexpr std::string_view kLearningRate = "backpass.learning_rate";
constexpr std::string_view kSeed = "backpass.seed";
constexpr std::string_view kRandomCounter = "backpass.random_counter";
constexpr std::string_view kStep = "backpass.step";
constexpr std::string_view kScheduler = "backpass.scheduler";
constexpr std::string_view kSchedulerPrefix = "backpass.scheduler.";

template <class T>
std::optional<T> get(const Properties& reserved, std::string_view name, std::string_view where) {
  const auto found = reserved.find(name);
  if (found == reserved.end()) return std::nullopt;
  const T* const value = std::get_if<T>(&found->second);
  constexpr std::array<std::string_view, 3> kinds = {"an integer", "a float", "a string"};
  if (value == nullptr) {
    fail(where, "property ", printable(name), ": got ", kinds[found->second.index()], ", expected ",
         kinds[PropertyValue(T{}).index()]);
  }
  return *value;
}

}  // namespace

Properties to_properties(const ResumeState& resume, bool include_optimizer_state, std::int64_t step) {
  Properties out;
  if (resume.seed) out.emplace(kSeed, *resume.seed);
  if (resume.random_counter) out.emplace(kRandomCounter, std::bit_cast<std::int64_t>(*resume.random_counter));
  if (!include_optimizer_state) return out;
  if (resume.learning_rate) out.emplace(kLearningRate, *resume.learning_rate);
  if (!resume.scheduler.empty()) {
    out.emplace(kScheduler, resume.scheduler);
    for (const auto& [key, value] : resume.scheduler_state) out.emplace(std::string(kSchedulerPrefix) + key, value);
  }
  if (!out.empty()) out.emplace(kStep, step);
  return out;
}

ResumeState to_resume_state(const Properties& reserved, std::int64_t step, std::string_view where) {
  ResumeState out;
  out.seed = get<std::int64_t>(reserved, kSeed, where);
  const auto counter = get<std::int64_t>(reserved, kRandomCounter, where);
  if (counter) out.random_counter = std::bit_cast<std::uint64_t>(*counter);
  if (get<std::int64_t>(reserved, kStep, where) != step) return out;
  out.learning_rate = get<float>(reserved, kLearningRate, where);
  out.scheduler = get<std::string>(reserved, kScheduler, where).value_or("");
  for (auto at = reserved.lower_bound(kSchedulerPrefix);
       at != reserved.end() && at->first.starts_with(kSchedulerPrefix); ++at) {
    out.scheduler_state.emplace(at->first.substr(kSchedulerPrefix.size()), at->second);
  }
  return out;
}

std::int64_t current_step(const CheckpointState& state) {
  return state.optimizer_groups().empty() ? 0 : state.optimizer_groups().front().step;
}

}  // namespace backpass::onnx_io
