#include "support/interruption.hpp"

#include <cmath>
#include <ctime>
#include <limits>

namespace backpass {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// Whoever is asked may have to wait for a lock: seldom enough to cost nothing, often enough for a person at a keyboard.
constexpr std::int64_t kBetweenQuestions = kSecond / 10;

constinit thread_local InterruptionScope* innermost = nullptr;
constinit thread_local bool is_asked_in_kernel = false;

/// Of the last tick of the system: reading it is a few loads, and milliseconds are enough.
std::int64_t now() {
#ifdef CLOCK_MONOTONIC_COARSE
  constexpr clockid_t kClock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
  timespec time{};
  clock_gettime(kClock, &time);
  return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

std::int64_t end_of(std::int64_t start, double seconds) {
  constexpr double kLongest = 1e9;  // thirty years; more would not fit
  if (std::isnan(seconds) || seconds < 0) {
    fail("time_limit: got ", seconds, ", expected a number of seconds, or 0 for no limit");
  }
  return seconds == 0 || seconds > kLongest ? 0 : start + static_cast<std::int64_t>(seconds * kSecond);
}

}  // namespace

InterruptionScope::InterruptionScope(const CancelFlag* flag, double time_limit)
    : outer_(innermost), flag_(flag), time_limit_(time_limit), start_(now()), end_(end_of(start_, time_limit)) {
  if (is_asked_in_kernel) {
    fail("a session was called by a signal handler in the midst of another call's step; let the handler raise, or set ",
         "a flag");
  }
  innermost = this;
}

InterruptionScope::InterruptionScope(void (*ask)())
    : outer_(innermost), ask_(ask), next_ask_(now() + kBetweenQuestions) {
  innermost = this;
}

InterruptionScope::~InterruptionScope() { innermost = outer_; }

void InterruptionScope::check(std::int64_t time) {
  if (flag_ != nullptr && flag_->is_set()) fail<Cancelled>("cancelled: its cancel flag is set");
  if (end_ != 0 && time > end_) {
    fail<Cancelled>("time limit: got ", static_cast<double>(time - start_) / kSecond, " s, expected at most ",
                    time_limit_, " s; raise time_limit, or make it 0 for none");
  }
  if (ask_ == nullptr || time < next_ask_) return;
  next_ask_ = time + kBetweenQuestions;
  ask_();
}

void check_interruption() {
  if (innermost == nullptr) return;
  const std::int64_t time = now();
  for (InterruptionScope* scope = innermost; scope != nullptr && !scope->is_committed(); scope = scope->outer_) {
    scope->check(time);
  }
}

void commit_call() {
  if (innermost != nullptr) innermost->is_committed_ = true;
}

void check_interruption_in_kernel() {
  struct Asked {
    bool before = is_asked_in_kernel;
    Asked() { is_asked_in_kernel = true; }
    ~Asked() { is_asked_in_kernel = before; }
  };
  if (innermost == nullptr) return;
  const Asked asked;
  check_interruption();
}

Uninterrupted::Uninterrupted() : hidden_(innermost) { innermost = nullptr; }

Uninterrupted::~Uninterrupted() { innermost = hidden_; }

}  // namespace backpass
