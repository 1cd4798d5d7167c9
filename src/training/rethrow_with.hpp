// Errors that are told more about on their way.
#pragma once

#include "backpass/error.hpp"

namespace backpass {

/// The error being handled, with something to add if it is one of ours.
[[noreturn]] inline void rethrow_with(const char* note) {
  try {
    throw;
  } catch (const InvalidInput& e) {
    fail<InvalidInput>(e.what(), note);
  } catch (const Unsupported& e) {
    fail<Unsupported>(e.what(), note);
  } catch (const InternalBug& e) {
    fail<InternalBug>(e.what(), note);
  }
}

}  // namespace backpass
