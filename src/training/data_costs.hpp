// What steps take with the passes that the data of batches were worth.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backpass/report.hpp"
#include "training/training_plan.hpp"

namespace backpass {

/// Adds operations and bytes to each choice of the report, and the choice of no passes, which the others are compared
/// with. `plan_of` gives the plan of a choice.
void add_costs(DataReport& report, const std::function<TrainingPlan&(const std::vector<std::string>&)>& plan_of);

}  // namespace backpass
