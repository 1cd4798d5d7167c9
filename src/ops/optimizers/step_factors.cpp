#include <cmath>

#include "ops/optimizers/optimizer.hpp"

namespace backpass {
namespace {

double bias(bool corrected, double decay, double step) { return corrected ? 1 - std::pow(decay, step) : 1; }

}  // namespace

StepFactors sgd_factors(const WeightSettings& settings, double rate, double gradient_scale) {
  return {
      .gradient_scale = gradient_scale, .gradient_decay = settings.weight_decay, .rate = rate * settings.rate_scale};
}

StepFactors adam_factors(const WeightSettings& settings, double rate, double step, double gradient_scale) {
  const double scaled_rate = rate * settings.rate_scale;
  const double first = bias(settings.correct_bias, settings.alpha, step);
  const double second = bias(settings.correct_bias, settings.beta, step);
  const double keep = settings.decays_gradient ? 1 : 1 - scaled_rate * settings.weight_decay;
  const bool after = settings.decays_after;
  return {.gradient_scale = gradient_scale,
          .gradient_decay = settings.decays_gradient ? settings.weight_decay : 0,
          .rate = after ? scaled_rate * std::sqrt(second) / first : scaled_rate / first,
          .alpha = settings.alpha,
          .beta = settings.beta,
          .epsilon = settings.epsilon,
          .root_scale = after ? 1 : 1 / std::sqrt(second),
          .keep_before = after ? 1 : keep,
          .keep_after = after ? keep : 1};
}

StepFactors lamb_factors(const WeightSettings& settings, double step, double gradient_scale) {
  const double second = bias(settings.correct_bias, settings.beta, step);
  return {.gradient_scale = gradient_scale,
          .gradient_decay = settings.decays_gradient ? settings.weight_decay : 0,
          .rate = 1 / bias(settings.correct_bias, settings.alpha, step),
          .alpha = settings.alpha,
          .beta = settings.beta,
          .epsilon = settings.epsilon,
          .root_scale = 1 / std::sqrt(second),
          .direction_decay = settings.decays_gradient ? 0 : settings.weight_decay};
}

}  // namespace backpass
