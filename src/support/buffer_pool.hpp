// Memory for results that callers hold for a while and give back: the gradients of one step are freed before those of
// the next are asked for, and pages that were just touched need not be faulted in again.
#pragma once

#include <memory>

#include "backpass/tensor.hpp"

namespace backpass {

class BufferPool {
 public:
  BufferPool();
  ~BufferPool();

  /// Uninitialised memory, which comes back to the pool when its last handle goes; after the pool, it is freed.
  Tensor take(DType dtype, Dims dims);

  /// To be called once per run: memory that two runs in a row did not need is freed.
  void end_run();

  std::size_t idle_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace backpass
