// Tensors and attributes as text that is the same exactly where they are: for comparing nodes.
#pragma once

#include <string>

#include "graph/graph.hpp"

namespace backpass {

std::string exact_text(const Tensor& tensor);
std::string exact_text(const Attribute& attribute);

}  // namespace backpass
