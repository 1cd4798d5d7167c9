// Updates that every process makes by gradients of its own, brought together by Adasum (ops/collectives/adasum.hpp):
// what they agree on is done once, where they differ both is done. Moments stay each process' own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backpass/parallel.hpp"

namespace backpass {

class AdasumUpdate {
 public:
  /// `piece_bytes`: about as much is exchanged at a time.
  AdasumUpdate(std::shared_ptr<Communicator> communicator, std::int64_t piece_bytes);

  /// Calls `update`, which changes the weights, and replaces what it changed by the Adasum of all processes' changes.
  /// These are computed in `changes`, memory of the weights' types that nobody needs when `update` has run. Weights
  /// that were equal on all processes are so again, bit by bit.
  void run(std::span<const Tensor> weights, std::span<const Tensor> changes, const std::function<void()>& update);

  /// Whether it is so on every process.
  bool is_everywhere(bool so) const;

 private:
  void combine(std::span<const Tensor> changes) const;

  std::shared_ptr<Communicator> communicator_;
  std::int64_t piece_bytes_;
  std::vector<Tensor> before_;
};

}  // namespace backpass
