#include "ops/recurrent/recurrent_grad.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/gemm.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

std::int64_t aligned(std::int64_t elements) { return (elements + 15) / 16 * 16; }

struct ScratchPlan {
  std::int64_t gates, states, rows, state;
  std::int64_t total() const { return gates + 2 * states + rows + 3 * state; }
};

ScratchPlan scratch_plan(const RecurrentLayout& l, CellKind kind) {
  const std::int64_t width = gate_count(kind) * l.hidden;
  const std::int64_t rows = l.steps * l.batch;
  return {aligned(rows * width), aligned(rows * l.hidden), aligned(l.batch * width), aligned(l.batch * l.hidden)};
}

/// One direction: per step the gradients of the gates, then few large products for everything else.
template <class T>
class DirectionGrad {
 public:
  DirectionGrad(const RecurrentLayout& layout, const CellSpec& spec, const RecurrentGradTensors<T>& tensors,
                std::int64_t index, T* scratch)
      : l_(layout), spec_(spec), t_(tensors), d_(index), n_(layout.hidden), width_(gate_count(spec.kind) * n_) {
    const ScratchPlan plan = scratch_plan(layout, spec.kind);
    da_ = scratch;
    previous_ = da_ + plan.gates;
    candidate_ = previous_ + plan.states;
    step_ = candidate_ + plan.states;
    dh_ = step_ + plan.rows;
    dc_ = dh_ + plan.state;
    carried_ = dc_ + plan.state;
    w_ = t_.w + d_ * width_ * l_.inputs;
    r_ = t_.r + d_ * width_ * n_;
  }

  void run() {
    load_previous();
    load_state(t_.grad_h, dh_);
    load_state(t_.grad_c, dc_);
    if (resets_after_product()) {
      // The hidden side of the candidate, which the forward run did not keep.
      const T* bias = t_.bias == nullptr ? nullptr : t_.bias + (d_ * 2 + 1) * width_ + 2 * n_;
      gemm<T>(false, true, l_.steps * l_.batch, n_, n_, T(1), previous_, n_, r_ + 2 * n_ * n_, n_, T(0), candidate_, n_,
              Epilogue<T>{.bias = bias});
    }
    for (std::int64_t i = 0; i < l_.steps; ++i) {
      const std::int64_t t = spec_.reverse ? i : l_.steps - 1 - i;
      spec_.kind == CellKind::lstm ? lstm_step(t) : gru_step(t);
    }
    store_state(dh_, t_.grad_initial_h);
    store_state(dc_, t_.grad_initial_c);
    finish();
  }

 private:
  bool resets_after_product() const { return spec_.kind == CellKind::gru && spec_.linear_before_reset; }
  bool is_active(std::int64_t t, std::int64_t b) const { return t_.lengths == nullptr || t < t_.lengths[b]; }
  std::int64_t row(std::int64_t t, std::int64_t b) const { return t * l_.batch + b; }

  // The hidden state that entered each step.
  void load_previous() {
    for (std::int64_t t = 0; t < l_.steps; ++t) {
      for (std::int64_t b = 0; b < l_.batch; ++b) {
        const T* from = before(t_.all_h, t_.initial_h, t, b);
        T* to = previous_ + row(t, b) * n_;
        if (from == nullptr) {
          std::fill_n(to, n_, T(0));
        } else {
          std::copy_n(from, n_, to);
        }
      }
    }
  }

  // A state before step t; null stands for zeros. Backwards, a sequence begins at its own last step.
  const T* before(const T* all, const T* initial, std::int64_t t, std::int64_t b) const {
    const std::int64_t length = t_.lengths == nullptr ? l_.steps : t_.lengths[b];
    const std::int64_t first = spec_.reverse ? length - 1 : 0;
    if (t == first || t >= length) return initial == nullptr ? nullptr : initial + l_.state_row(d_, b) * n_;
    return all + l_.y_row(spec_.reverse ? t + 1 : t - 1, d_, b) * n_;
  }

  void load_state(const T* from, T* state) const {
    for (std::int64_t b = 0; b < l_.batch; ++b) {
      if (from == nullptr) {
        std::fill_n(state + b * n_, n_, T(0));
      } else {
        std::copy_n(from + l_.state_row(d_, b) * n_, n_, state + b * n_);
      }
    }
  }

  void store_state(const T* state, T* to) const {
    if (to == nullptr) return;
    for (std::int64_t b = 0; b < l_.batch; ++b) std::copy_n(state + b * n_, n_, to + l_.state_row(d_, b) * n_);
  }

  // Rows past their end have no part in the step: their state gradients pass through it.
  template <class F>
  void for_rows(std::int64_t t, const F& f) {
    parallel_for(l_.batch, grain_for(width_ * 8), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        T* da = da_ + row(t, b) * width_;
        T* dh = dh_ + b * n_;
        if (!is_active(t, b)) {
          std::fill_n(da, width_, T(0));
          std::copy_n(dh, n_, carried_ + b * n_);
          continue;
        }
        if (t_.grad_all_h != nullptr) {
          const T* more = t_.grad_all_h + l_.y_row(t, d_, b) * n_;
          for (std::int64_t i = 0; i < n_; ++i) dh[i] += more[i];
        }
        f(b, da, dh);
      }
    });
  }

  void lstm_step(std::int64_t t) {
    for_rows(t, [&](std::int64_t b, T* da, const T* dh) { lstm_row(t, b, da, dh); });
    // What enters the hidden state comes through the gates alone; rows without a step keep theirs.
    gemm<T>(false, false, l_.batch, n_, width_, T(1), da_ + row(t, 0) * width_, width_, r_, n_, T(1), carried_, n_);
    std::swap(dh_, carried_);
  }

  void lstm_row(std::int64_t t, std::int64_t b, T* da, const T* dh) {
    const T* gates = t_.gates + l_.y_row(t, d_, b) * width_;
    const T* c = t_.all_c + l_.y_row(t, d_, b) * n_;
    const T* c_before = before(t_.all_c, t_.initial_c, t, b);
    const T* p = t_.peepholes == nullptr ? nullptr : t_.peepholes + d_ * 3 * n_;
    T* dc = dc_ + b * n_;
    for (std::int64_t k = 0; k < n_; ++k) {
      const T i = gates[k], o = gates[n_ + k], f = gates[2 * n_ + k], g = gates[3 * n_ + k];
      const T was = c_before == nullptr ? T(0) : c_before[k];
      const T shown = std::tanh(c[k]);
      const T d_o = dh[k] * shown * o * (1 - o);
      T d_c = dc[k] + dh[k] * o * (1 - shown * shown);
      if (p != nullptr) d_c += d_o * p[n_ + k];
      const T d_i = d_c * g * i * (1 - i);
      const T d_f = d_c * was * f * (1 - f);
      da[k] = d_i, da[n_ + k] = d_o, da[2 * n_ + k] = d_f, da[3 * n_ + k] = d_c * i * (1 - g * g);
      dc[k] = d_c * f;
      if (p != nullptr) dc[k] += d_i * p[k] + d_f * p[2 * n_ + k];
      carried_[b * n_ + k] = 0;
    }
  }

  void gru_step(std::int64_t t) {
    for_rows(t, [&](std::int64_t b, T* da, const T* dh) { gru_row(t, b, da, dh); });
    T* da = da_ + row(t, 0) * width_;
    if (!resets_after_product()) {
      // Gradient of (r * h), on its way to r and h.
      gemm<T>(false, false, l_.batch, n_, n_, T(1), da + 2 * n_, width_, r_ + 2 * n_ * n_, n_, T(0), step_, n_);
      for (std::int64_t b = 0; b < l_.batch; ++b) reset_row(t, b, da + b * width_);
      gemm<T>(false, false, l_.batch, n_, 2 * n_, T(1), da, width_, r_, n_, T(1), carried_, n_);
    } else {
      hidden_side(t, 1, step_);
      gemm<T>(false, false, l_.batch, n_, width_, T(1), step_, width_, r_, n_, T(1), carried_, n_);
    }
    std::swap(dh_, carried_);
  }

  void gru_row(std::int64_t t, std::int64_t b, T* da, const T* dh) {
    const T* gates = t_.gates + l_.y_row(t, d_, b) * width_;
    const T* h = previous_ + row(t, b) * n_;
    const T* product = candidate_ + row(t, b) * n_;
    for (std::int64_t k = 0; k < n_; ++k) {
      const T z = gates[k], r = gates[n_ + k], g = gates[2 * n_ + k];
      da[k] = dh[k] * (h[k] - g) * z * (1 - z);
      da[2 * n_ + k] = dh[k] * (1 - z) * (1 - g * g);
      da[n_ + k] = resets_after_product() ? da[2 * n_ + k] * product[k] * r * (1 - r) : T(0);
      carried_[b * n_ + k] = dh[k] * z;
    }
  }

  void reset_row(std::int64_t t, std::int64_t b, T* da) {
    T* reset = candidate_ + row(t, b) * n_;  // r * h, kept for the gradient of the weights
    std::fill_n(reset, n_, T(0));
    if (!is_active(t, b)) return;
    const T* gates = t_.gates + l_.y_row(t, d_, b) * width_;
    const T* h = previous_ + row(t, b) * n_;
    for (std::int64_t k = 0; k < n_; ++k) {
      const T r = gates[n_ + k];
      da[n_ + k] = step_[b * n_ + k] * h[k] * r * (1 - r);
      carried_[b * n_ + k] += step_[b * n_ + k] * r;
      reset[k] = r * h[k];
    }
  }

  // Gradients on the hidden side of the gates: those of the candidate are multiplied by r there.
  void hidden_side(std::int64_t t, std::int64_t steps, T* to) const {
    for (std::int64_t i = 0; i < steps * l_.batch; ++i) {
      const std::int64_t at = row(t, 0) + i;
      const T* gates = t_.gates + l_.y_row(at / l_.batch, d_, at % l_.batch) * width_;
      std::copy_n(da_ + at * width_, width_, to + i * width_);
      for (std::int64_t k = 0; k < n_; ++k) to[i * width_ + 2 * n_ + k] *= gates[n_ + k];
    }
  }

  void finish() {
    const std::int64_t rows = l_.steps * l_.batch;
    const std::int64_t inputs = l_.inputs;
    if (t_.grad_x != nullptr)
      gemm<T>(false, false, rows, inputs, width_, T(1), da_, width_, w_, inputs, d_ == 0 ? T(0) : T(1), t_.grad_x,
              inputs);
    if (t_.grad_w != nullptr)
      gemm<T>(true, false, width_, inputs, rows, T(1), da_, width_, t_.x, inputs, T(0),
              t_.grad_w + d_ * width_ * inputs, inputs);
    T* grad_bias = t_.grad_bias == nullptr ? nullptr : t_.grad_bias + d_ * 2 * width_;
    if (grad_bias != nullptr) sum_rows(da_, rows, grad_bias);
    if (t_.grad_peepholes != nullptr) peephole_gradient();
    if (resets_after_product())
      for (std::int64_t t = 0; t < l_.steps; ++t)
        hidden_side(t, 1, step_), std::copy_n(step_, l_.batch * width_, da_ + row(t, 0) * width_);
    if (grad_bias != nullptr) sum_rows(da_, rows, grad_bias + width_);
    if (t_.grad_r == nullptr) return;
    T* grad_r = t_.grad_r + d_ * width_ * n_;
    const bool apart = spec_.kind == CellKind::gru && !resets_after_product();
    gemm<T>(true, false, apart ? 2 * n_ : width_, n_, rows, T(1), da_, width_, previous_, n_, T(0), grad_r, n_);
    if (apart)
      gemm<T>(true, false, n_, n_, rows, T(1), da_ + 2 * n_, width_, candidate_, n_, T(0), grad_r + 2 * n_ * n_, n_);
  }

  void sum_rows(const T* from, std::int64_t rows, T* to) const {
    std::vector<double> sums(static_cast<std::size_t>(width_), 0);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < width_; ++k) sums[static_cast<std::size_t>(k)] += from[i * width_ + k];
    std::copy(sums.begin(), sums.end(), to);
  }

  void peephole_gradient() const {
    std::vector<double> sums(static_cast<std::size_t>(3 * n_), 0);
    for (std::int64_t t = 0; t < l_.steps; ++t) {
      for (std::int64_t b = 0; b < l_.batch; ++b) {
        if (!is_active(t, b)) continue;
        const T* da = da_ + row(t, b) * width_;
        const T* after = t_.all_c + l_.y_row(t, d_, b) * n_;
        const T* was = before(t_.all_c, t_.initial_c, t, b);
        for (std::int64_t k = 0; k < n_; ++k) {
          const T old = was == nullptr ? T(0) : was[k];
          sums[static_cast<std::size_t>(k)] += da[k] * old;
          sums[static_cast<std::size_t>(n_ + k)] += da[n_ + k] * after[k];
          sums[static_cast<std::size_t>(2 * n_ + k)] += da[2 * n_ + k] * old;
        }
      }
    }
    std::copy(sums.begin(), sums.end(), t_.grad_peepholes + d_ * 3 * n_);
  }

  const RecurrentLayout& l_;
  const CellSpec& spec_;
  const RecurrentGradTensors<T>& t_;
  std::int64_t d_, n_, width_;
  const T *w_, *r_;
  T* da_;         ///< of the gates before activation, all steps
  T* previous_;   ///< hidden states that entered the steps
  T* candidate_;  ///< GRU: hidden side of the candidate, or r * h
  T *step_, *dh_, *dc_, *carried_;
};

}  // namespace

std::int64_t recurrent_grad_scratch(const RecurrentLayout& layout, CellKind kind) {
  return scratch_plan(layout, kind).total();
}

template <class T>
void recurrent_gradient(const RecurrentLayout& layout, const std::vector<CellSpec>& directions,
                        const RecurrentGradTensors<T>& tensors, T* scratch) {
  for (std::int64_t d = 0; d < layout.directions; ++d)
    DirectionGrad<T>(layout, directions[static_cast<std::size_t>(d)], tensors, d, scratch).run();
}

template void recurrent_gradient(const RecurrentLayout&, const std::vector<CellSpec>&,
                                 const RecurrentGradTensors<float>&, float*);
template void recurrent_gradient(const RecurrentLayout&, const std::vector<CellSpec>&,
                                 const RecurrentGradTensors<double>&, double*);

}  // namespace backpass
