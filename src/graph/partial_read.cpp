#include "graph/partial_read.hpp"

#include <set>
#include <utility>

namespace backpass {
namespace {

using Key = std::pair<std::string_view, std::string_view>;  // domain, operator

std::set<Key>& registry() {
  static std::set<Key> all;
  return all;
}

}  // namespace

RegisterPartialRead::RegisterPartialRead(std::string_view op, std::string_view domain) {
  registry().emplace(domain, op);
}

bool reads_part(const Node& node) { return registry().contains(Key{node.domain, node.op}); }

}  // namespace backpass
