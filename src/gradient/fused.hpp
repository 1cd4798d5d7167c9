// Gradients by one node made for them, of whose outputs only those that are wanted exist.
#pragma once

#include <string_view>
#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// Emits `op`, whose output i is the gradient of input i, and answers for the first `count` inputs. Outputs for inputs
/// that want nothing are left out, and trailing ones not mentioned at all.
void set_by_fused(GradientContext& g, std::string_view op, std::vector<Value*> reads, std::size_t count,
                  std::string_view domain = "com.microsoft");

}  // namespace backpass
