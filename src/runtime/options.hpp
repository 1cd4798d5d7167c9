// What every session does with its options first.
#pragma once

#include "backpass/session.hpp"

namespace backpass {

/// The options themselves; throws InvalidInput when a number among them cannot be meant.
const SessionOptions& checked(const SessionOptions& options);

}  // namespace backpass
