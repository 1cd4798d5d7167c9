// The gradients of a step in memory that is sent to other processes piece by piece, while the step goes on.
//
// A bucket is sent when its last gradient is complete (backpass.BucketReady says so) and all buckets before it have
// been sent: every process sends them in the same order, whatever its own data made of the backward pass. What nobody
// told about is sent when the step is over. Sums are the same either way, bit by bit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backpass/parallel.hpp"
#include "support/bucket_listener.hpp"
#include "training/bucket_layout.hpp"

namespace backpass {

class GradientBuckets : public BucketListener {
 public:
  /// `scatters`: of each sum, this process gets the part of its rank only, where it stands in the bucket.
  GradientBuckets(std::vector<Bucket> layout, std::shared_ptr<Communicator> communicator, bool scatters);

  const std::vector<Bucket>& layout() const { return layout_; }
  const std::vector<Tensor>& buckets() const { return memory_; }
  const std::vector<Tensor>& gradients() const { return gradients_; }  ///< by their numbers

  /// A step begins whose gradients are to be added up over all processes.
  void begin();
  void complete(std::size_t bucket, std::span<const void* const> gradients) override;
  /// The step is over: waits for all sums.
  void finish();
  /// The step failed. What was sent cannot be taken back: from now on begin() throws.
  void abandon();

 private:
  void send_complete();
  Tensor own_part(std::size_t bucket) const;

  std::vector<Bucket> layout_;
  std::shared_ptr<Communicator> communicator_;
  std::vector<Tensor> memory_;
  std::vector<Tensor> parts_;  // of this rank, where sums are scattered
  std::vector<Tensor> gradients_;
  std::vector<bool> is_complete_;
  std::size_t sent_ = 0;  // buckets
  bool is_out_of_step_ = false;
};

}  // namespace backpass
