// The FlatBuffers classes made from checkpoint.fbs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

static_assert(std::endian::native == std::endian::little, "tensor data is stored as it lies in memory");

// Hidden: a program may hold another version of FlatBuffers (PyTorch does), and inline functions of the same name must
// not be merged with its own. What FlatBuffers includes of the standard library stands above, or that would be hidden,
// too.
#pragma GCC visibility push(hidden)
#include "checkpoint_generated.h"
#pragma GCC visibility pop

namespace backpass::onnx_io {

inline constexpr std::int32_t kCheckpointVersion = 2;

}  // namespace backpass::onnx_io
