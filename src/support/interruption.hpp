// How what runs on a thread learns that it should stop: a flag is set, its time is over, or somebody who is asked now
// and then throws (the Python bindings, for Ctrl-C).
#pragma once

#include <cstdint>

#include "backpass/cancel.hpp"

namespace backpass {

/// A reason to stop, for what runs on this thread while the object lives. Reasons of callers go on to count.
class InterruptionScope {
 public:
  /// `flag` may be null. Throws InvalidInput where `time_limit` is not a number of seconds; 0: none.
  InterruptionScope(const CancelFlag* flag, double time_limit);
  /// `ask` is called some times per second, and throws what shall come out of the run.
  explicit InterruptionScope(void (*ask)());
  ~InterruptionScope();
  InterruptionScope(const InterruptionScope&) = delete;
  InterruptionScope& operator=(const InterruptionScope&) = delete;

  /// Whether commit_call() was called while this was the innermost scope.
  bool is_committed() const { return is_committed_; }

 private:
  friend void check_interruption();
  friend void commit_call();
  friend void check_interruption_in_kernel();
  friend class Uninterrupted;
  void check(std::int64_t now);

  InterruptionScope* outer_;
  const CancelFlag* flag_ = nullptr;
  double time_limit_ = 0;
  std::int64_t start_ = 0;  // in nanoseconds
  std::int64_t end_ = 0;    // 0: never
  void (*ask_)() = nullptr;
  std::int64_t next_ask_ = 0;
  bool is_committed_ = false;
};

/// Nothing on this thread is a reason to stop while the object lives: for what must be done wholly or not at all.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;

 private:
  InterruptionScope* hidden_;
};

/// Something was changed that is of use only with what the call is going to change: nothing is a reason to stop any
/// more until the innermost scope ends.
void commit_call();

/// Throws Cancelled, or what the asked one throws, where there is a reason to stop. To be called between steps; costs
/// some nanoseconds.
void check_interruption();

/// The same from inside a step, whose thread's buffers are in use: whoever is asked cannot start another run on
/// this thread.
void check_interruption_in_kernel();

}  // namespace backpass
