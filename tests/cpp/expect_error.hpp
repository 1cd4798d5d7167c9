// Errors are read by people: tests look at what they say.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace backpass {

/// f() throws an E whose message holds all of `parts`.
template <class E, class F>
void expect_error(const F& f, std::initializer_list<std::string_view> parts) {
  try {
    f();
  } catch (const E& e) {
    for (std::string_view part : parts) {
      EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << e.what();
    }
    return;
  }
  ADD_FAILURE() << "no error";
}

}  // namespace backpass
