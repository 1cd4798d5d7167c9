// Gradient rules of the Reduce family.
#pragma once

#include <string_view>

namespace backpass {

class GradientContext;

/// The rule of the reduction of this name ("ReduceSum", ...); null when there is none.
void (*reduce_rule(std::string_view op))(GradientContext&);

}  // namespace backpass
