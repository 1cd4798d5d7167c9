// Stopping a call that takes too long.
//
//   auto flag = std::make_shared<backpass::CancelFlag>();
//   backpass::InferenceSession session("model.onnx", {.cancel = flag});
//   // ... in another thread, or in a signal handler:
//   flag->set();  // session.run throws backpass::Cancelled, naming the node that it had reached
//
// A flag is looked at between steps, iterations of loops, and pieces of long kernels. What a cancelled call leaves is
// what any call that throws leaves: sessions can be used again; tensors that the caller gave for outputs hold anything;
// parameters and optimizer are as they were; gradients that a training step was writing count as lost, until a step
// that replaces them has run. Updates of an optimizer are not interrupted, nor is train_and_update once it has begun to
// update.
#pragma once

#include <atomic>

#include "backpass/error.hpp"

namespace backpass {

/// The call was stopped: its flag was set, or its time was over. The message names the node that was reached.
class Cancelled : public Error {
 public:
  using Error::Error;
};

/// Shared by those who may cancel and those who run. Stays set until it is cleared: runs that start meanwhile stop
/// at once.
class CancelFlag {
 public:
  void set() noexcept { is_set_.store(true, std::memory_order_relaxed); }  ///< from any thread or signal handler
  void clear() noexcept { is_set_.store(false, std::memory_order_relaxed); }
  bool is_set() const noexcept { return is_set_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_set_ = false;
};

}  // namespace backpass
