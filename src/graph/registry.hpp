// The table behind find_op, for those who change it while the program runs.
#pragma once

#include <memory>
#include <string_view>

#include "graph/op.hpp"

namespace backpass {

/// From now on `def` is what find_op gives for its name; null takes away what was put there, so that the built-in
/// operator, if any, is found again. Definitions are never destroyed: graphs point to them.
void override_op(std::string_view domain, std::string_view name, std::shared_ptr<const OpDef> def);

/// The built-in operator of that name, whatever overrides it; null when there is none.
const OpDef* find_built_in(std::string_view domain, std::string_view name);

}  // namespace backpass
