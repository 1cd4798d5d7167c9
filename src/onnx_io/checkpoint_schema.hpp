// The FlatBuffers classes made from checkpoint.fbs.
#pragma once

#include <bit>
#include <cstdint>

static_assert(std::endian::native == std::endian::little, "tensor data is stored as it lies in memory");

// Hidden: a program may hold another version of FlatBuffers (PyTorch does), and inline functions of the same name must
// not be merged with its own.
#pragma GCC visibility push(hidden)
#include "checkpoint_generated.h"
#pragma GCC visibility pop

namespace backpass::onnx_io {

inline constexpr std::int32_t kCheckpointVersion = 2;

}  // namespace backpass::onnx_io
