#include "ops/optimizers/multi_tensor.hpp"

#include <algorithm>
#include <vector>

#include "ops/optimizers/lamb.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "support/convert.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

template <class T>
StepPiece<T> tensors_of(const WeightMemory& weight, std::int64_t begin) {
  T* w = static_cast<T*>(weight.weight) + begin;
  const T* g = static_cast<const T*>(weight.gradient) + begin;
  if (weight.first == nullptr) return {w, g, nullptr, nullptr, w, nullptr, nullptr};
  T* m = static_cast<T*>(weight.first) + (begin - weight.state_begin);
  T* v = static_cast<T*>(weight.second) + (begin - weight.state_begin);
  return {w, g, m, v, w, m, v};
}

/// step(float tensors, count) for elements of 16 bits, in blocks that stay in the first-level cache.
template <class T, class F>
void through_float(DType dtype, const StepPiece<T>& piece, std::int64_t count, const F& step) {
  constexpr std::int64_t kBlock = 512;
  float w[kBlock], g[kBlock], m[kBlock], v[kBlock];
  const ConvertLoop widen = convert_loop(dtype, DType::float32), narrow = convert_loop(DType::float32, dtype);
  const bool has_states = piece.m != nullptr;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    const StepPiece<T> from = piece.from(at);
    widen(from.w, w, n);
    widen(from.g, g, n);
    if (has_states) widen(from.m, m, n);
    if (has_states) widen(from.v, v, n);
    step(StepPiece<float>{w, g, has_states ? m : nullptr, v, w, m, v}, n);
    narrow(w, from.w_out, n);
    if (has_states) narrow(m, from.m_out, n);
    if (has_states) narrow(v, from.v_out, n);
  }
}

/// step(tensors, count, weight) on all threads.
template <class F>
void for_all(std::span<const WeightMemory> weights, ElementRange range, const F& step) {
  Pieces(weights, range).on_all_threads([&](const Piece& piece, std::size_t) {
    const WeightMemory& weight = weights[piece.tensor];
    visit_float(weight.dtype, [&]<class T>() {
      const StepPiece<T> tensors = tensors_of<T>(weight, piece.begin);
      if constexpr (sizeof(T) == 2) {
        through_float(weight.dtype, tensors, piece.count,
                      [&](const StepPiece<float>& t, std::int64_t n) { step(t, n, piece.tensor); });
      } else {
        step(tensors, piece.count, piece.tensor);
      }
    });
  });
}

void add_up(const OptimizerStep& step, std::vector<LambSums>& sums) {
  if (!step.add_up) return;
  std::vector<double> flat;
  for (const LambSums& s : sums) flat.insert(flat.end(), {s.weight, s.direction});
  step.add_up(flat);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = {flat[2 * i], flat[2 * i + 1]};
}

void run_lamb(const OptimizerStep& step, const SettingsByWeight& settings, std::span<const StepFactors> factors,
              std::span<const WeightMemory> weights) {
  const Pieces pieces(weights, step.range);
  std::vector<LambSums> partial(pieces.all().size());
  std::vector<std::vector<std::int64_t>> refused(pieces.all().size());
  auto visit_pieces = [&](const auto& f) {
    pieces.on_all_threads([&](const Piece& piece, std::size_t number) {
      const WeightMemory& weight = weights[piece.tensor];
      visit_real(weight.dtype, [&]<class T>() { f(piece, number, tensors_of<T>(weight, piece.begin)); });
    });
  };
  visit_pieces([&](const Piece& piece, std::size_t number, const auto& tensors) {
    partial[number] = lamb_moments(factors[settings.kind(piece.tensor)], tensors, piece.count, refused[number]);
  });
  std::vector<LambSums> sums(weights.size());
  for (std::size_t i = 0; i < partial.size(); ++i) sums[pieces.all()[i].tensor].add(partial[i]);
  add_up(step, sums);
  visit_pieces([&](const Piece& piece, std::size_t number, const auto& tensors) {
    const std::size_t kind = settings.kind(piece.tensor);
    const double ratio = lamb_ratio(settings.kinds[kind], step.rate, sums[piece.tensor]);
    lamb_apply(factors[kind], ratio, tensors, piece.count, refused[number]);
  });
}

StepFactors factors_of(Algorithm algorithm, const WeightSettings& settings, const OptimizerStep& step) {
  double scale = step.gradient_scale;
  if (step.norm && *step.norm > settings.max_norm) scale *= settings.max_norm / *step.norm;
  switch (algorithm) {
    case Algorithm::sgd:
      return sgd_factors(settings, step.rate, scale);
    case Algorithm::adam:
      return adam_factors(settings, step.rate, static_cast<double>(step.step), scale);
    case Algorithm::lamb:
      return lamb_factors(settings, static_cast<double>(step.step), scale);
  }
  fail<InternalBug>("optimizer: algorithm ", static_cast<int>(algorithm));
}

}  // namespace

void run_optimizer(Algorithm algorithm, const OptimizerStep& step, const SettingsByWeight& settings,
                   std::span<const WeightMemory> weights) {
  std::vector<StepFactors> factors;
  for (const WeightSettings& s : settings.kinds) factors.push_back(factors_of(algorithm, s, step));
  switch (algorithm) {
    case Algorithm::sgd:
      return for_all(weights, step.range, [&](const auto& tensors, std::int64_t n, std::size_t weight) {
        sgd_piece(factors[settings.kind(weight)], tensors, n);
      });
    case Algorithm::adam:
      return for_all(weights, step.range, [&](const auto& tensors, std::int64_t n, std::size_t weight) {
        adam_piece(factors[settings.kind(weight)], tensors, n);
      });
    case Algorithm::lamb:
      return run_lamb(step, settings, factors, weights);
  }
}

double sum_of_squares(std::span<const Tensor> tensors, double scale, ElementRange range) {
  const Pieces pieces(tensors, range);
  std::vector<double> partial(pieces.all().size());
  pieces.on_all_threads([&](const Piece& piece, std::size_t number) {
    const Tensor& tensor = tensors[piece.tensor];
    visit_real(tensor.dtype(),
               [&]<class T>() { partial[number] = squares_of(tensor.as<T>() + piece.begin, piece.count); });
  });
  double sum = 0;
  for (const double part : partial) sum += part;
  return sum * scale * scale;
}

}  // namespace backpass
