#include "ops/recurrent/recurrent_kernel.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/cell_rows.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

// Rows of one product for the inputs: enough to run at full speed, few enough that the gates stay in the cache.
constexpr std::int64_t kRowsAtOnce = 512;
// With less work per step than this, directions run side by side even when that leaves threads idle.
constexpr std::int64_t kSmallStep = std::int64_t{1} << 20;

std::int64_t steps_at_once(const RecurrentLayout& l) {
  return std::min(l.steps, (kRowsAtOnce + l.batch - 1) / std::max<std::int64_t>(l.batch, 1));
}

std::int64_t aligned(std::int64_t elements) { return (elements + 15) / 16 * 16; }

struct ScratchPlan {
  std::int64_t gates, x, recurrent, state, bias;
  std::int64_t total() const { return gates + x + recurrent + 2 * state + bias; }
};

ScratchPlan scratch_plan(const RecurrentLayout& l, CellKind kind) {
  const std::int64_t width = gate_count(kind) * l.hidden;
  const std::int64_t rows = steps_at_once(l) * l.batch;
  return {aligned(rows * width), l.batch_first ? aligned(rows * l.inputs) : 0,
          kind == CellKind::gru ? aligned(l.batch * width) : 0, aligned(l.batch * l.hidden), aligned(width)};
}

/// One direction of one run.
template <class T>
class Direction {
 public:
  Direction(const RecurrentLayout& layout, const CellSpec& spec, const RecurrentTensors<T>& tensors, std::int64_t index,
            T* scratch)
      : l_(layout), spec_(spec), t_(tensors), d_(index), width_(gate_count(spec.kind) * layout.hidden) {
    const ScratchPlan plan = scratch_plan(layout, spec.kind);
    gates_ = scratch + index * plan.total();
    x_ = gates_ + plan.gates;
    recurrent_ = x_ + plan.x;
    h_ = recurrent_ + plan.recurrent;
    c_ = h_ + plan.state;
    bias_ = c_ + plan.state;
    clip_ = spec.clip == kNoClip<float> ? kNoClip<T> : static_cast<T>(spec.clip);
    const bool plain = clip_ == kNoClip<T> && spec.f.kind == ActivationKind::sigmoid &&
                       spec.g.kind == ActivationKind::tanh && spec.h.kind == ActivationKind::tanh;
    const bool has_own_loop = spec.kind == CellKind::lstm ? t_.peepholes == nullptr && !spec.input_forget
                                                          : spec.kind == CellKind::gru && spec.linear_before_reset;
    usual_cell_ = std::is_same_v<T, float> && plain && has_own_loop;
  }

  void run() {
    load_bias();
    load_state(t_.initial_h, h_);
    load_state(t_.initial_c, c_);
    r_ = t_.packed_r[static_cast<std::size_t>(d_)];
    if (!r_.first.is_there()) r_ = pack_recurrence(spec_, l_.hidden, t_.r + d_ * width_ * l_.hidden);
    const std::int64_t chunk = steps_at_once(l_);
    for (std::int64_t done = 0; done < l_.steps; done += chunk) {
      const std::int64_t count = std::min(chunk, l_.steps - done);
      const std::int64_t begin = spec_.reverse ? l_.steps - done - count : done;
      project(begin, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t offset = spec_.reverse ? count - 1 - i : i;
        step(begin + offset, gates_ + offset * l_.batch * width_);
      }
    }
    store_state(h_, t_.y_h);
    store_state(c_, t_.y_c);
  }

 private:
  // GRU with linear_before_reset adds the hidden side's bias to the hidden side.
  bool bias_apart() const { return spec_.kind == CellKind::gru && spec_.linear_before_reset; }

  void load_bias() {
    std::fill_n(bias_, width_, T(0));
    if (t_.bias == nullptr) return;
    const T* from = t_.bias + d_ * 2 * width_;
    for (std::int64_t i = 0; i < width_; ++i) bias_[i] = bias_apart() ? from[i] : from[i] + from[width_ + i];
  }

  void load_state(const T* from, T* state) const {
    for (std::int64_t b = 0; b < l_.batch; ++b) {
      if (from == nullptr) {
        std::fill_n(state + b * l_.hidden, l_.hidden, T(0));
      } else {
        std::copy_n(from + l_.state_row(d_, b) * l_.hidden, l_.hidden, state + b * l_.hidden);
      }
    }
  }

  void store_state(const T* state, T* to) const {
    if (to == nullptr) return;
    for (std::int64_t b = 0; b < l_.batch; ++b)
      std::copy_n(state + b * l_.hidden, l_.hidden, to + l_.state_row(d_, b) * l_.hidden);
  }

  // The input side of all gates for `count` steps.
  void project(std::int64_t begin, std::int64_t count) {
    const std::int64_t rows = count * l_.batch;
    const T* x = t_.x + begin * l_.batch * l_.inputs;
    if (l_.batch_first) {
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(t_.x + l_.x_row(begin + i / l_.batch, i % l_.batch) * l_.inputs, l_.inputs, x_ + i * l_.inputs);
      x = x_;
    }
    const Epilogue<T> add_bias{.bias = bias_};
    if (const auto& packed = t_.packed_w[static_cast<std::size_t>(d_)]) {
      packed->multiply(false, rows, T(1), x, l_.inputs, T(0), gates_, width_, add_bias);
    } else {
      gemm<T>(false, true, rows, width_, l_.inputs, T(1), x, l_.inputs, t_.w + d_ * width_ * l_.inputs, l_.inputs, T(0),
              gates_, width_, add_bias);
    }
  }

  void step(std::int64_t t, T* gates) {
    if (spec_.kind == CellKind::gru) return gru_step(t, gates);
    r_.first.multiply(t, l_.batch, h_, T(1), gates, width_);
    for_rows(t, [&](std::int64_t b) {
      if (usual_cell_) return usual_row(t, b, gates + b * width_);
      T* row = gates + b * width_;
      T* h = h_ + b * l_.hidden;
      if (spec_.kind == CellKind::rnn) {
        activate<T>(spec_.f, clip_, row, l_.hidden);
        std::copy_n(row, l_.hidden, h);
      } else {
        lstm(row, c_ + b * l_.hidden, h);
      }
      save(t, b, row);
    });
  }

  void gru_step(std::int64_t t, T* gates) {
    const std::int64_t n = l_.hidden;
    if (spec_.linear_before_reset) {
      const T* bias = t_.bias == nullptr ? nullptr : t_.bias + (d_ * 2 + 1) * width_;
      r_.first.multiply(t, l_.batch, h_, T(0), recurrent_, width_, bias);
    } else {
      r_.first.multiply(t, l_.batch, h_, T(1), gates, width_);
      for_all_rows([&](std::int64_t b) {
        T* row = gates + b * width_;
        activate<T>(spec_.f, clip_, row, 2 * n);
        for (std::int64_t i = 0; i < n; ++i) recurrent_[b * n + i] = row[n + i] * h_[b * n + i];
      });
      r_.second.multiply(t, l_.batch, recurrent_, T(1), gates + 2 * n, width_);
    }
    for_rows(t, [&](std::int64_t b) {
      if (usual_cell_) return usual_row(t, b, gates + b * width_);
      gru(gates + b * width_, recurrent_ + b * width_, h_ + b * n);
      save(t, b, gates + b * width_);
    });
  }

  // One loop for all of a usual cell, saving included.
  void usual_row(std::int64_t t, std::int64_t b, const T* gates) const {
    if constexpr (std::is_same_v<T, float>) {
      const std::int64_t n = l_.hidden;
      const std::int64_t row = l_.y_row(t, d_, b);
      const CellCopies copies{t_.gates == nullptr ? nullptr : t_.gates + row * width_,
                              t_.all_c == nullptr ? nullptr : t_.all_c + row * n,
                              t_.y == nullptr ? nullptr : t_.y + row * n};
      if (spec_.kind == CellKind::lstm) {
        lstm_row(gates, c_ + b * n, h_ + b * n, n, copies);
      } else {
        gru_row(gates, recurrent_ + b * width_, h_ + b * n, n, copies);
      }
    }
  }

  void lstm(T* gates, T* c, T* h) const {
    const std::int64_t n = l_.hidden;
    T* input = gates;
    T* output = gates + n;
    T* forget = gates + 2 * n;
    T* candidate = gates + 3 * n;
    const T* p = t_.peepholes == nullptr ? nullptr : t_.peepholes + d_ * 3 * n;
    if (p != nullptr) add_product(p, c, input), add_product(p + 2 * n, c, forget);
    activate<T>(spec_.f, clip_, input, n);
    if (spec_.input_forget) {
      for (std::int64_t i = 0; i < n; ++i) forget[i] = 1 - input[i];
    } else {
      activate<T>(spec_.f, clip_, forget, n);
    }
    activate<T>(spec_.g, clip_, candidate, n);
    for (std::int64_t i = 0; i < n; ++i) c[i] = forget[i] * c[i] + input[i] * candidate[i];
    if (p != nullptr) add_product(p + n, c, output);
    activate<T>(spec_.f, clip_, output, n);
    std::copy_n(c, n, h);
    activate<T>(spec_.h, kNoClip<T>, h, n);
    for (std::int64_t i = 0; i < n; ++i) h[i] *= output[i];
  }

  void add_product(const T* a, const T* b, T* sum) const {
    for (std::int64_t i = 0; i < l_.hidden; ++i) sum[i] += a[i] * b[i];
  }

  // With linear_before_reset `gates` has the input side only; otherwise everything but the candidate is done.
  void gru(T* gates, const T* recurrent, T* h) const {
    const std::int64_t n = l_.hidden;
    if (spec_.linear_before_reset) {
      for (std::int64_t i = 0; i < 2 * n; ++i) gates[i] += recurrent[i];
      activate<T>(spec_.f, clip_, gates, 2 * n);
      for (std::int64_t i = 0; i < n; ++i) gates[2 * n + i] += gates[n + i] * recurrent[2 * n + i];
    }
    activate<T>(spec_.g, clip_, gates + 2 * n, n);
    for (std::int64_t i = 0; i < n; ++i) h[i] = gates[2 * n + i] + gates[i] * (h[i] - gates[2 * n + i]);
  }

  template <class F>
  void for_all_rows(const F& f) const {
    parallel_for(l_.batch, grain_for(width_ * 8), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) f(b);
    });
  }

  // Rows past the end of their sequence keep their state and give zeros.
  template <class F>
  void for_rows(std::int64_t t, const F& f) const {
    for_all_rows([&](std::int64_t b) {
      if (t_.lengths == nullptr || t < t_.lengths[b]) return f(b);
      const std::int64_t row = l_.y_row(t, d_, b);
      if (t_.y != nullptr) std::fill_n(t_.y + row * l_.hidden, l_.hidden, T(0));
      if (t_.all_c != nullptr) std::fill_n(t_.all_c + row * l_.hidden, l_.hidden, T(0));
      if (t_.gates != nullptr) std::fill_n(t_.gates + row * width_, width_, T(0));
    });
  }

  void save(std::int64_t t, std::int64_t b, const T* gates) const {
    const std::int64_t row = l_.y_row(t, d_, b);
    if (t_.y != nullptr) std::copy_n(h_ + b * l_.hidden, l_.hidden, t_.y + row * l_.hidden);
    if (t_.all_c != nullptr) std::copy_n(c_ + b * l_.hidden, l_.hidden, t_.all_c + row * l_.hidden);
    if (t_.gates != nullptr) std::copy_n(gates, width_, t_.gates + row * width_);
  }

  const RecurrentLayout& l_;
  const CellSpec& spec_;
  const RecurrentTensors<T>& t_;
  std::int64_t d_;
  std::int64_t width_;  ///< of all gates together
  T clip_;
  bool usual_cell_;
  PackedRecurrence<T> r_;
  T *gates_, *x_, *recurrent_, *h_, *c_, *bias_;
};

}  // namespace

std::int64_t recurrent_scratch(const RecurrentLayout& layout, CellKind kind) {
  return layout.directions * scratch_plan(layout, kind).total();
}

template <class T>
void run_recurrent(const RecurrentLayout& layout, const std::vector<CellSpec>& directions,
                   const RecurrentTensors<T>& tensors, T* scratch) {
  const std::int64_t work = layout.batch * layout.hidden * layout.hidden * gate_count(directions[0].kind);
  // One direction per thread needs no meeting after each step.
  const bool side_by_side = work < kSmallStep || layout.directions >= threads_here();
  parallel_for(layout.directions, side_by_side ? 1 : layout.directions, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d)
      Direction<T>(layout, directions[static_cast<std::size_t>(d)], tensors, d, scratch).run();
  });
}

template void run_recurrent(const RecurrentLayout&, const std::vector<CellSpec>&, const RecurrentTensors<float>&,
                            float*);
template void run_recurrent(const RecurrentLayout&, const std::vector<CellSpec>&, const RecurrentTensors<double>&,
                            double*);

}  // namespace backpass
