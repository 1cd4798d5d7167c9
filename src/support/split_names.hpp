// Lists of names as environment variables and C strings hold them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backpass {

/// The names in "a, b,c".
inline std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names(1);
  for (char c : text) {
    if (c == ',') {
      names.emplace_back();
    } else if (c != ' ') {
      names.back() += c;
    }
  }
  std::erase(names, "");
  return names;
}

}  // namespace backpass
