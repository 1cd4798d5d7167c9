// Tensors that lie in each other's memory.
#pragma once

#include <span>

#include "backpass/tensor.hpp"

namespace backpass {

/// Whether a tensor that is written shares bytes with another one of those, or with one that is read.
bool shares_memory(std::span<const Tensor> written, std::span<const RuntimeValue> read);

}  // namespace backpass
