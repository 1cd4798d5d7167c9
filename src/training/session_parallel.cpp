// A session that trains together with those of other processes.
#include <numeric>

#include "ops/optimizers/clip_gradients.hpp"
#include "support/interruption.hpp"
#include "training/rethrow_with.hpp"
#include "training/session_impl.hpp"

namespace backpass {

void TrainingSession::Impl::set_communicator(std::shared_ptr<Communicator> communicator, const ParallelOptions& how) {
  require_parameters("set_communicator");
  if (how.adasum) {
    fail<Unsupported>("set_communicator: adasum: got a session, whose gradients and updates are calls of their own; ",
                      "use a Trainer");
  }
  if (optimizer != nullptr) gather_optimizer_state();  // what shares hold so far
  OptimizerGroup none;
  OptimizerGroup* kept = optimizer != nullptr ? &group() : state->find_group("group0");
  const std::vector<std::string>& trained = training->trainable();
  parallel = std::make_unique<ParallelTraining>(std::move(communicator), how, *state, kept != nullptr ? *kept : none,
                                                trained, training->completion_order(), random);
  std::vector<std::size_t> order(trained.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  parallel->set_buckets(*training, order);
  gradients.clear();
  for (std::size_t i = 0; i < trained.size(); ++i) gradients.emplace(trained[i], parallel->gradients()[i]);
  overwrite = true;
  are_exchanged = false;
  gradient_scale = 1;
  remember_random();
  if (optimizer != nullptr) share_optimizer();
}

void TrainingSession::Impl::share_optimizer() {
  const std::vector<std::string>& trained = training->trainable();
  parallel->set_optimizer(optimizer->algorithm(), std::vector<WeightSettings>(trained.size(), optimizer->settings()));
  if (is_sharded()) parallel->sharded().adopt(tensors(trained), group());
}

void TrainingSession::Impl::gather_optimizer_state() {
  require_optimizer();
  if (is_sharded()) parallel->sharded().gather(tensors(training->trainable()), group());
}

void TrainingSession::Impl::note_exchange() {
  are_exchanged = true;
  gradient_scale = 1.0 / parallel->size();
}

/// Steps kept their gradients to themselves.
void TrainingSession::Impl::exchange_late() {
  ParallelTraining::Exchange exchange(*parallel);
  exchange.finish();
  note_exchange();
}

void TrainingSession::Impl::settle_gradients() {
  if (gradient_scale == 1) return;
  if (has_shared_out_gradients()) {
    fail("train_step: got gradients that are shared out over processes already, nothing can be added to them; exchange",
         " them in the last step of an accumulation only, or call lazy_reset_grad");
  }
  parallel->scale_gradients(gradient_scale);
  gradient_scale = 1;
}

void TrainingSession::Impl::sharded_step() {
  ShardedOptimizer& sharded = parallel->sharded();
  double scale = gradient_scale;
  if (optimizer->max_norm()) scale *= clip_factor(sharded.norm(scale), *optimizer->max_norm());
  const OptimizerPass::Step step{.rate = rate, .step = group().step + 1, .gradient_scale = scale};
  const Uninterrupted whole;
  try {
    sharded.run(step, tensors(training->trainable()), group());
  } catch (...) {
    state->set_half_updated();
    rethrow_with("; parameters of some processes had moved, others had not: load the last checkpoint");
  }
  has_gradients = false;
  overwrite = true;
  count_step();
}

}  // namespace backpass
