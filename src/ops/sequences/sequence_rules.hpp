// Gradients of the operators on sequences and optionals, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void sequence_construct_gradient(GradientContext& g);
void sequence_insert_gradient(GradientContext& g);
void sequence_erase_gradient(GradientContext& g);
void sequence_at_gradient(GradientContext& g);
void split_to_sequence_gradient(GradientContext& g);
void concat_from_sequence_gradient(GradientContext& g);
void sequence_map_gradient(GradientContext& g);
void sequence_map_fused_gradient(GradientContext& g);

}  // namespace backpass
