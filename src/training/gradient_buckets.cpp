#include "training/gradient_buckets.hpp"

#include <cstring>

namespace backpass {
namespace {

Tensor zeros(DType dtype, std::int64_t size) {
  Tensor t(dtype, {size});
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

/// Some elements of a tensor, as a tensor over the same memory.
Tensor cut(const Tensor& t, std::int64_t begin, std::int64_t size) {
  return {t.dtype(), {size}, t.as<std::byte>() + byte_size(t.dtype(), begin), t.owner()};
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<Bucket> layout, std::shared_ptr<Communicator> communicator, bool scatters)
    : layout_(std::move(layout)), communicator_(std::move(communicator)), is_complete_(layout_.size()) {
  std::size_t count = 0;
  for (const Bucket& bucket : layout_) count += bucket.members.size();
  gradients_.resize(count);
  for (const Bucket& bucket : layout_) {
    memory_.push_back(zeros(bucket.dtype, bucket.size));
    if (scatters) parts_.push_back(zeros(bucket.dtype, bucket.size / communicator_->size()));
    for (const Bucket::Member& m : bucket.members) {
      gradients_[m.gradient] = cut(memory_.back(), m.begin, m.size).reshaped(m.dims);
    }
  }
}

void GradientBuckets::begin() {
  if (is_out_of_step_) {
    fail("gradients: an earlier step failed while they were being exchanged, so that this process is no longer in step",
         " with the others; start again from the last checkpoint");
  }
  is_complete_.assign(layout_.size(), false);
  sent_ = 0;
}

/// A gradient that is not in its place yet is put there when the step is over: its bucket has to wait.
void GradientBuckets::complete(std::size_t bucket, std::span<const void* const> gradients) {
  const Bucket& b = layout_[bucket];
  ensure(gradients.size() == b.members.size(), "gradients of bucket ", bucket);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Bucket::Member& m = b.members[i];
    if (m.size > 0 && gradients[i] != gradients_[m.gradient].data()) return;
  }
  is_complete_[bucket] = true;
  send_complete();
}

Tensor GradientBuckets::own_part(std::size_t bucket) const {
  const std::int64_t size = parts_[bucket].size();
  return cut(memory_[bucket], communicator_->rank() * size, size);
}

void GradientBuckets::send_complete() {
  for (; sent_ < layout_.size() && is_complete_[sent_]; ++sent_) {
    if (parts_.empty()) {
      communicator_->start_allreduce(memory_[sent_]);
    } else {
      communicator_->start_reduce_scatter(memory_[sent_], parts_[sent_]);
    }
  }
}

void GradientBuckets::finish() {
  is_complete_.assign(layout_.size(), true);
  send_complete();
  communicator_->wait();
  for (std::size_t b = 0; b < parts_.size(); ++b) {
    Tensor to = own_part(b);
    if (to.bytes() > 0) std::memcpy(to.mutable_data(), parts_[b].data(), to.bytes());
  }
}

void GradientBuckets::abandon() { is_out_of_step_ = is_out_of_step_ || sent_ > 0; }

}  // namespace backpass
