// Recurrent layers over raw memory: one matrix product for the inputs of many time steps, then per step one for the
// hidden state and a loop over the gates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/activation.hpp"
#include "kernels/gemm.hpp"

namespace backpass {

enum class CellKind : std::uint8_t { rnn, lstm, gru };

/// Gates as ONNX orders them: rnn i; lstm i, o, f, c; gru z, r, h.
inline std::int64_t gate_count(CellKind kind) { return kind == CellKind::rnn ? 1 : kind == CellKind::lstm ? 4 : 3; }

struct RecurrentLayout {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
  std::int64_t inputs = 0;
  std::int64_t hidden = 0;
  std::int64_t directions = 1;
  bool batch_first = false;  ///< the batch axis leads in X, Y and the states

  /// Which row of X, of Y (and other sequences of states), of a state belongs to (step, direction, batch item).
  std::int64_t x_row(std::int64_t t, std::int64_t b) const { return batch_first ? b * steps + t : t * batch + b; }
  std::int64_t y_row(std::int64_t t, std::int64_t d, std::int64_t b) const {
    return batch_first ? (b * steps + t) * directions + d : (t * directions + d) * batch + b;
  }
  std::int64_t state_row(std::int64_t d, std::int64_t b) const {
    return batch_first ? b * directions + d : d * batch + b;
  }
};

/// What one direction computes.
struct CellSpec {
  CellKind kind = CellKind::rnn;
  Activation f, g, h;  ///< gates; candidate; LSTM's output
  float clip = kNoClip<float>;
  bool reverse = false;
  bool input_forget = false;         ///< LSTM: the forget gate is 1 - input gate
  bool linear_before_reset = false;  ///< GRU
};

/// Hidden-side weights of some gates, which every step reads from one end to the other. As many as a cache holds would
/// be gone from it each time their turn comes again, so steps begin in turn with one half and the other: where the last
/// one ended.
template <class T>
struct PackedGates {
  std::array<std::shared_ptr<const PackedMatrix<T>>, 2> halves;  ///< the second is null for few weights

  bool is_there() const { return halves[0] != nullptr; }
  /// C = H R + beta * C + bias (null: none).
  void multiply(std::int64_t step, std::int64_t rows, const T* h, T beta, T* c, std::int64_t ldc,
                const T* bias = nullptr) const {
    for (std::int64_t i = step; i < step + 2; ++i) {
      const PackedMatrix<T>* half = halves[static_cast<std::size_t>(i % 2)].get();
      if (half == nullptr) continue;
      const std::int64_t first = i % 2 == 0 ? 0 : halves[0]->cols();
      const Epilogue<T> add_bias{.bias = bias == nullptr ? nullptr : bias + first};
      half->multiply(false, rows, T(1), h, half->rows(), beta, c + first, ldc, add_bias);
    }
  }
};

/// In the order the products read them: all gates, or (GRU without linear_before_reset) z, r and h.
template <class T>
struct PackedRecurrence {
  PackedGates<T> first, second;
};

template <class T>
PackedRecurrence<T> pack_recurrence(const CellSpec& spec, std::int64_t hidden, const T* r);
/// The same of constant weights that begin `offset` elements into a tensor: made once and shared.
template <class T>
PackedRecurrence<T> shared_recurrence(const CellSpec& spec, std::int64_t hidden, const Tensor& r, std::int64_t offset);

/// Whole tensors of the layer; optional ones may be null.
template <class T>
struct RecurrentTensors {
  const T* x = nullptr;
  const T* w = nullptr;
  const T* r = nullptr;
  const T* bias = nullptr;
  const std::int32_t* lengths = nullptr;  ///< of the batch items, each in [0, steps]
  const T* initial_h = nullptr;
  const T* initial_c = nullptr;
  const T* peepholes = nullptr;
  T* y = nullptr;
  T* y_h = nullptr;
  T* y_c = nullptr;
  T* all_c = nullptr;                                              ///< cell state after every step, ordered as y
  T* gates = nullptr;                                              ///< activated gates of every step, rows ordered as y
  std::array<std::shared_ptr<const PackedMatrix<T>>, 2> packed_w;  ///< per direction, when W is constant
  std::array<PackedRecurrence<T>, 2> packed_r;
};

/// Elements of working memory that run_recurrent needs.
std::int64_t recurrent_scratch(const RecurrentLayout& layout, CellKind kind);

template <class T>
void run_recurrent(const RecurrentLayout& layout, const std::vector<CellSpec>& directions,
                   const RecurrentTensors<T>& tensors, T* scratch);

}  // namespace backpass
