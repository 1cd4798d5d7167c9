// Gradient rules of operators that combine updates with the elements of a tensor at given indices.
#pragma once

namespace backpass {

class GradientContext;

void scatter_elements_gradient(GradientContext& g);
void scatter_nd_gradient(GradientContext& g);

}  // namespace backpass
