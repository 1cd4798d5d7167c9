// The element-wise part of the usual recurrent cells: sigmoid gates, tanh, no limits.
#pragma once

#include <cstdint>

namespace backpass {

/// Where else a row goes besides the state; null: nobody reads it there.
struct CellCopies {
  float* gates = nullptr;  ///< activated, ordered as before activation; may be where they come from
  float* cell = nullptr;
  float* hidden = nullptr;
};

/// One row of an LSTM: `gates` holds i, o, f, c before activation; `cell` and `hidden` are updated. Copies change no
/// bit of them.
void lstm_row(const float* gates, float* cell, float* hidden, std::int64_t hidden_size, const CellCopies& copies);

/// One row of a GRU: `gates` holds z, r, h of the input side, `recurrent` those of the hidden side (bias included), h
/// of which is multiplied by r; `hidden` is updated.
void gru_row(const float* gates, const float* recurrent, float* hidden, std::int64_t hidden_size,
             const CellCopies& copies);

}  // namespace backpass
