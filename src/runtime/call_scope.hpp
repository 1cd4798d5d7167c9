// What holds while a call of a session is under way.
#pragma once

#include "backpass/session.hpp"
#include "support/interruption.hpp"
#include "support/parallel.hpp"

namespace backpass {

/// The session's number of threads and its reasons to stop. The options must outlive the object.
class CallScope {
 public:
  explicit CallScope(const SessionOptions& options)
      : threads_(options.num_threads), interruption_(options.cancel.get(), options.time_limit) {}

  bool is_committed() const { return interruption_.is_committed(); }

 private:
  ThreadScope threads_;
  InterruptionScope interruption_;
};

}  // namespace backpass
