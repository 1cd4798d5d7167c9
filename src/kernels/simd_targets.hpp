// The other name of kernels/simd.hpp.
#pragma once

#include "kernels/simd.hpp"  // IWYU pragma: export
