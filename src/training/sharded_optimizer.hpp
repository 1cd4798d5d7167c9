// An optimizer each process of which keeps and updates a share of all weights' elements (ZeRO stage 1): of every bucket
// of gradients the part of its rank.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/checkpoint.hpp"
#include "backpass/parallel.hpp"
#include "training/gradient_buckets.hpp"
#include "training/optimizer_pass.hpp"

namespace backpass {

class ShardedOptimizer {
 public:
  /// Names and settings by gradient. The buckets must outlive it.
  ShardedOptimizer(std::shared_ptr<Communicator> communicator, GradientBuckets& buckets, std::vector<std::string> names,
                   Algorithm algorithm, const std::vector<WeightSettings>& settings);

  /// Of the gradients of all shares, multiplied by `scale`.
  double norm(double scale) const;

  /// Takes over what the group holds of moments: whole tensors, as a checkpoint has them.
  void adopt(std::span<const Tensor> parameters, OptimizerGroup& group);

  /// Adopts what there is, updates this share, then gets the others' weights; the memory of gradients is used up.
  void run(const OptimizerPass::Step& step, std::span<const Tensor> parameters, OptimizerGroup& group);

  /// Puts whole moments into the group, put together from all shares; everybody has to call it.
  void gather(std::span<const Tensor> parameters, OptimizerGroup& group);

 private:
  struct Share {  // of a bucket
    OptimizerPass pass;
    BucketPart part;
    std::vector<std::vector<Tensor>> states;  // of each state the parts of all members
  };

  void gather_weights(std::size_t bucket, std::span<const Tensor> parameters);
  std::vector<Tensor> members(std::size_t bucket, std::span<const Tensor> tensors) const;

  std::shared_ptr<Communicator> communicator_;
  GradientBuckets& buckets_;
  std::vector<std::string> names_;
  std::vector<std::string> keys_;  // of states
  std::vector<Share> shares_;
};

}  // namespace backpass
