#include "training/sharded_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/printable.hpp"

namespace backpass {
namespace {

/// The elements of a member that lie in a part of its bucket.
struct Overlap {
  std::int64_t begin = 0, end = 0;

  Overlap(const Bucket::Member& m, const BucketPart& part)
      : begin(std::clamp<std::int64_t>(part.begin - m.begin, 0, m.size)),
        end(std::clamp<std::int64_t>(part.end - m.begin, 0, m.size)) {}
  std::int64_t size() const { return end - begin; }
};

std::byte* at(const Tensor& tensor, std::int64_t element) {
  Tensor handle = tensor;
  return handle.as<std::byte>() + byte_size(tensor.dtype(), element);
}

void copy(const std::byte* from, std::byte* to, DType dtype, std::int64_t count) {
  if (count > 0) std::memcpy(to, from, byte_size(dtype, count));
}

Tensor zeros(DType dtype, Dims dims) {
  Tensor t(dtype, std::move(dims));
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::shared_ptr<Communicator> communicator, GradientBuckets& buckets,
                                   std::vector<std::string> names, Algorithm algorithm,
                                   const std::vector<WeightSettings>& settings)
    : communicator_(std::move(communicator)),
      buckets_(buckets),
      names_(std::move(names)),
      keys_(OptimizerPass::state_names(algorithm)) {
  for (const Bucket& bucket : buckets_.layout()) {
    std::vector<WeightSettings> own;
    for (const Bucket::Member& m : bucket.members) own.push_back(settings[m.gradient]);
    const BucketPart part = part_of(bucket, communicator_->rank(), communicator_->size());
    shares_.push_back({OptimizerPass(algorithm, own), part, {}});
    for (std::size_t s = 0; s < keys_.size(); ++s) {
      std::vector<Tensor>& state = shares_.back().states.emplace_back();
      for (const Bucket::Member& m : bucket.members) {
        state.push_back(zeros(bucket.dtype, {Overlap(m, part).size()}));
      }
    }
  }
}

std::vector<Tensor> ShardedOptimizer::members(std::size_t bucket, std::span<const Tensor> tensors) const {
  std::vector<Tensor> found;
  for (const Bucket::Member& m : buckets_.layout()[bucket].members) found.push_back(tensors[m.gradient]);
  return found;
}

double ShardedOptimizer::norm(double scale) const {
  Tensor sum(DType::float64, {1});
  double& squares = *sum.as<double>();
  squares = 0;
  for (std::size_t b = 0; b < shares_.size(); ++b) {
    const BucketPart& part = shares_[b].part;
    squares += sum_of_squares(members(b, buckets_.gradients()), scale, {part.first, part.last});
  }
  communicator_->allreduce(sum);
  return std::sqrt(squares);
}

void ShardedOptimizer::run(const OptimizerPass::Step& step, std::span<const Tensor> parameters, OptimizerGroup& group) {
  adopt(parameters, group);
  OptimizerPass::Step own = step;
  own.add_up = [this](std::span<double> sums) {
    const Dims dims{static_cast<std::int64_t>(sums.size())};
    communicator_->allreduce(Tensor(DType::float64, dims, sums.data(), nullptr));
  };
  for (std::size_t b = 0; b < shares_.size(); ++b) {
    const Share& share = shares_[b];
    own.range = {share.part.first, share.part.last};
    share.pass.run(own, members(b, parameters), members(b, buckets_.gradients()), share.states);
  }
  for (std::size_t b = 0; b < shares_.size(); ++b) gather_weights(b, parameters);
}

/// The bucket's memory serves once more: gradients are used up.
void ShardedOptimizer::gather_weights(std::size_t bucket, std::span<const Tensor> parameters) {
  const Bucket& layout = buckets_.layout()[bucket];
  const BucketPart& part = shares_[bucket].part;
  const Tensor& all = buckets_.buckets()[bucket];
  const Tensor mine = zeros(layout.dtype, {part.end - part.begin});
  for (const Bucket::Member& m : layout.members) {
    const Overlap own(m, part);
    if (own.size() == 0) continue;
    copy(at(parameters[m.gradient], own.begin), at(mine, m.begin + own.begin - part.begin), layout.dtype, own.size());
  }
  communicator_->allgather(mine, all);
  for (const Bucket::Member& m : layout.members) {
    copy(at(all, m.begin), at(parameters[m.gradient], 0), layout.dtype, m.size);
  }
}

void ShardedOptimizer::adopt(std::span<const Tensor> parameters, OptimizerGroup& group) {
  for (std::size_t b = 0; b < shares_.size(); ++b) {
    const Bucket& layout = buckets_.layout()[b];
    for (std::size_t i = 0; i < layout.members.size(); ++i) {
      const Bucket::Member& m = layout.members[i];
      const Overlap own(m, shares_[b].part);
      const auto found = group.momentums.find(names_[m.gradient]);
      if (found == group.momentums.end()) continue;
      for (std::size_t s = 0; s < keys_.size(); ++s) {
        const auto whole = found->second.find(keys_[s]);
        if (whole == found->second.end()) continue;
        if (whole->second.dtype() != layout.dtype || whole->second.size() != parameters[m.gradient].size()) {
          fail("checkpoint: ", keys_[s], " of ", printable(names_[m.gradient]), ": got ",
               name_of(whole->second.dtype()), shown(whole->second.dims()), ", expected ", name_of(layout.dtype),
               shown(m.dims), ", as the weight");
        }
        copy(at(whole->second, own.begin), at(shares_[b].states[s][i], 0), layout.dtype, own.size());
      }
      group.momentums.erase(found);
    }
  }
}

void ShardedOptimizer::gather(std::span<const Tensor> parameters, OptimizerGroup& group) {
  adopt(parameters, group);
  for (std::size_t b = 0; b < shares_.size(); ++b) {
    const Bucket& layout = buckets_.layout()[b];
    const BucketPart& part = shares_[b].part;
    const Tensor all(layout.dtype, {layout.size});
    for (std::size_t s = 0; s < keys_.size(); ++s) {
      const Tensor mine = zeros(layout.dtype, {part.end - part.begin});
      for (std::size_t i = 0; i < layout.members.size(); ++i) {
        const Bucket::Member& m = layout.members[i];
        const Overlap own(m, part);
        if (own.size() == 0) continue;
        copy(at(shares_[b].states[s][i], 0), at(mine, m.begin + own.begin - part.begin), layout.dtype, own.size());
      }
      communicator_->allgather(mine, all);
      for (const Bucket::Member& m : layout.members) {
        Tensor whole(layout.dtype, m.dims);
        copy(at(all, m.begin), at(whole, 0), layout.dtype, m.size);
        group.momentums[names_[m.gradient]][keys_[s]] = whole;
      }
    }
  }
}

}  // namespace backpass
