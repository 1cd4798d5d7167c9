// Training by several processes, each on data of its own: the same weights everywhere, gradients added up.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/checkpoint.hpp"
#include "backpass/parallel.hpp"
#include "support/random_seed.hpp"
#include "training/adasum_update.hpp"
#include "training/gradient_buckets.hpp"
#include "training/sharded_optimizer.hpp"
#include "training/step_model.hpp"

namespace backpass {

class ParallelTraining {
 public:
  /// Everybody has to make one, at the same time. Parameters, moments and the number of updates become those of rank 0;
  /// random numbers those of its seed plus the rank, while states keep its seed: whoever reads one adds its own rank.
  /// InvalidInput on all when somebody trains other parameters. `order`: of the gradients of `trained`, as steps
  /// complete them.
  ParallelTraining(std::shared_ptr<Communicator> communicator, const ParallelOptions& options, CheckpointState& state,
                   OptimizerGroup& group, std::vector<std::string> trained, std::vector<std::size_t> order,
                   RandomSource& random);

  int size() const { return communicator_->size(); }
  std::uint64_t rank() const { return static_cast<std::uint64_t>(communicator_->rank()); }
  bool is_sharded() const { return options_.zero_stage > 0; }
  const std::vector<Tensor>& gradients() const { return buckets_->gradients(); }  ///< as trained

  const std::vector<Tensor>& buckets() const { return buckets_->buckets(); }

  /// Tells a model's steps which of its gradients belong together. `order`: of each its place in trained.
  void set_buckets(StepModel& model, std::span<const std::size_t> order) const;

  /// While it lives a step runs whose gradients are added up over all processes, as soon as they are complete.
  class Exchange {
   public:
    explicit Exchange(ParallelTraining& training);
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    ~Exchange();
    void finish();  ///< waits for the sums

   private:
    GradientBuckets& buckets_;
    BucketScope scope_;
    bool is_done_ = false;
  };

  /// Multiplies all gradients.
  void scale_gradients(double scale);

  /// Replaces running statistics by their average over all processes.
  void average(std::span<const Tensor> statistics);

  void set_optimizer(Algorithm algorithm, const std::vector<WeightSettings>& settings);
  /// Of the sums of gradients, multiplied by `scale`.
  double norm(double scale) const;
  /// Where processes update by themselves, what brings them together; null: gradients are added up.
  AdasumUpdate* adasum() { return adasum_.get(); }
  /// Where the optimizer's state is shared out (ZeRO).
  ShardedOptimizer& sharded() { return *sharded_; }

 private:
  void check_alike(std::span<const Tensor> weights) const;
  void share_state(CheckpointState& state, OptimizerGroup& group, RandomSource& random);
  void share_moments(const CheckpointState& state, OptimizerGroup& group);

  std::shared_ptr<Communicator> communicator_;
  ParallelOptions options_;
  std::vector<std::string> trained_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<ShardedOptimizer> sharded_;
  std::unique_ptr<AdasumUpdate> adasum_;
};

}  // namespace backpass
