#include "backpass/problem.hpp"

#include <algorithm>

#include "backpass/error.hpp"

namespace backpass {

void throw_if_any(const std::vector<Problem>& problems, std::string_view opening) {
  constexpr std::size_t kShown = 50;
  if (problems.empty()) return;
  std::string text(opening);
  if (problems.size() > 1) text += std::to_string(problems.size()) + " problems:\n";
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i) text += (i ? "\n" : "") + problems[i].text;
  if (problems.size() > kShown) text += "\n... and " + std::to_string(problems.size() - kShown) + " more";
  bool unsupported = std::all_of(problems.begin(), problems.end(),
                                 [](const Problem& p) { return p.kind == Problem::Kind::unsupported; });
  if (unsupported) throw Unsupported(text);
  throw InvalidInput(text);
}

}  // namespace backpass
