#include "training/trainer_parallel.hpp"

#include <cmath>
#include <cstring>

#include "ops/optimizers/clip_gradients.hpp"
#include "support/convert.hpp"

namespace backpass {
namespace {

Tensor numbers(std::span<const std::int64_t> values) { return Tensor::ints(values); }

/// FNV-1a: it only has to tell models apart.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    value_ = (value_ ^ 0xFF) * 1099511628211ULL;
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 14695981039346656037ULL;
};

/// All of them, in an order that is the same everywhere.
std::vector<Tensor> parameters_of(const CheckpointState& state) {
  std::vector<Tensor> tensors;
  for (const Parameter& p : state.parameters()) tensors.push_back(p.tensor);
  return tensors;
}

std::vector<Tensor> tensors_of(const CheckpointState& state, const std::vector<std::string>& names) {
  std::vector<Tensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(state.parameter(name).tensor);
  return tensors;
}

void check(const ParallelOptions& o) {
  if (o.bucket_bytes < 1) fail("parallel: bucket_bytes: got ", o.bucket_bytes, ", expected 1 or more");
  if (o.zero_stage < 0 || o.zero_stage > 1) fail("parallel: zero_stage: got ", o.zero_stage, ", expected 0 or 1");
  if (o.adasum && o.zero_stage > 0) {
    fail("parallel: adasum: got it together with zero_stage ", o.zero_stage, ", expected one of them: it needs whole ",
         "updates of every process");
  }
}

}  // namespace

ParallelTraining::ParallelTraining(std::shared_ptr<Communicator> communicator, const ParallelOptions& options,
                                   CheckpointState& state, OptimizerGroup& group, std::vector<std::string> trained,
                                   std::vector<std::size_t> order, RandomSource& random)
    : communicator_(std::move(communicator)), options_(options), trained_(std::move(trained)) {
  if (communicator_ == nullptr) fail("parallel: got no communicator, expected one");
  check(options_);
  const std::vector<Tensor> weights = tensors_of(state, trained_);
  check_alike(parameters_of(state));
  std::vector<std::int64_t> agreed(order.begin(), order.end());
  const Tensor shared = numbers(agreed);
  communicator_->broadcast(shared, 0);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::size_t>(shared.as<std::int64_t>()[i]);
  buckets_ = std::make_unique<GradientBuckets>(lay_out(weights, order, options_.bucket_bytes, size()), communicator_,
                                               is_sharded());
  if (options_.adasum) adasum_ = std::make_unique<AdasumUpdate>(communicator_, options_.bucket_bytes);
  share_state(state, group, random);
}

void ParallelTraining::check_alike(std::span<const Tensor> weights) const {
  Fingerprint print;
  for (const std::string& name : trained_) print.add(name);
  for (const Tensor& w : weights) print.add(concat(name_of(w.dtype()), shown(w.dims())));
  print.add(concat(options_.bucket_bytes, options_.zero_stage, options_.adasum));
  const std::vector<std::int64_t> own{print.value()};
  const Tensor all(DType::int64, {size()});
  communicator_->allgather(numbers(own), all);
  for (int rank = 0; rank < size(); ++rank) {
    if (all.as<std::int64_t>()[rank] == all.as<std::int64_t>()[0]) continue;
    fail("parallel: rank ", rank, " trains other parameters than rank 0, or with other options; expected the same ",
         "model on all processes");
  }
}

void ParallelTraining::share_state(CheckpointState& state, OptimizerGroup& group, RandomSource& random) {
  for (const Tensor& t : parameters_of(state)) communicator_->broadcast(t, 0);
  share_moments(state, group);
  const RandomRun own = random.peek();
  const std::vector<std::int64_t> counts{group.step, static_cast<std::int64_t>(own.seed),
                                         static_cast<std::int64_t>(own.run)};
  const Tensor shared = numbers(counts);
  communicator_->broadcast(shared, 0);
  const std::int64_t* found = shared.as<std::int64_t>();
  group.step = found[0];
  random.restore({static_cast<std::uint64_t>(found[1]) + rank(), static_cast<std::uint64_t>(found[2])});
}

/// A process that read no checkpoint gets what rank 0 read.
void ParallelTraining::share_moments(const CheckpointState& state, OptimizerGroup& group) {
  for (const std::string& name : trained_) {
    for (const char* key : {"momentum0", "momentum1"}) {
      OptimizerGroup::Momentums& kept = group.momentums[name];
      const std::vector<std::int64_t> own{kept.contains(key) ? 1 : 0};
      const Tensor exists = numbers(own);
      communicator_->broadcast(exists, 0);
      if (exists.as<std::int64_t>()[0] == 0) {
        kept.erase(key);
      } else {
        const Tensor& w = state.parameter(name).tensor;
        Tensor& moment = kept[key];
        if (moment.dims() != w.dims() || moment.dtype() != w.dtype()) moment = Tensor(w.dtype(), w.dims());
        communicator_->broadcast(moment, 0);
      }
    }
    if (group.momentums[name].empty()) group.momentums.erase(name);
  }
}

void ParallelTraining::set_buckets(StepModel& model, std::span<const std::size_t> order) const {
  if (!options_.overlaps || options_.adasum) return;
  std::vector<std::size_t> number_of(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) number_of[order[i]] = i;
  std::vector<std::vector<std::size_t>> buckets;
  for (const Bucket& bucket : buckets_->layout()) {
    buckets.emplace_back();
    for (const Bucket::Member& m : bucket.members) buckets.back().push_back(number_of[m.gradient]);
  }
  model.set_buckets(std::move(buckets));
}

ParallelTraining::Exchange::Exchange(ParallelTraining& training) : buckets_(*training.buckets_), scope_(&buckets_) {
  buckets_.begin();
}

void ParallelTraining::Exchange::finish() {
  buckets_.finish();
  is_done_ = true;
}

ParallelTraining::Exchange::~Exchange() {
  if (!is_done_) buckets_.abandon();
}

void ParallelTraining::scale_gradients(double scale) { scale_in_place(gradients(), scale); }

void ParallelTraining::average(std::span<const Tensor> statistics) {
  if (!options_.averages_statistics || size() == 1) return;
  std::int64_t count = 0;
  for (const Tensor& t : statistics) count += is_float(t.dtype()) ? t.size() : 0;
  if (count == 0) return;
  Tensor all(DType::float64, {count});
  double* at = all.as<double>();
  for (const Tensor& t : statistics) {
    if (!is_float(t.dtype())) continue;
    convert_loop(t.dtype(), DType::float64)(t.data(), at, t.size());
    at += t.size();
  }
  communicator_->allreduce(all);
  at = all.as<double>();
  for (std::int64_t i = 0; i < count; ++i) at[i] /= size();
  for (Tensor t : statistics) {
    if (!is_float(t.dtype())) continue;
    convert_loop(DType::float64, t.dtype())(at, t.mutable_data(), t.size());
    at += t.size();
  }
}

void ParallelTraining::set_optimizer(Algorithm algorithm, const std::vector<WeightSettings>& settings) {
  if (is_sharded()) {
    sharded_ = std::make_unique<ShardedOptimizer>(communicator_, *buckets_, trained_, algorithm, settings);
  }
}

double ParallelTraining::norm(double scale) const {
  return sharded_ != nullptr ? sharded_->norm(scale) : std::sqrt(sum_of_squares(gradients(), scale));
}

}  // namespace backpass
