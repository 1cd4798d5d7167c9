#include "graph/substitute.hpp"

#include <utility>

namespace backpass {
namespace {

using Key = std::pair<std::string_view, std::string_view>;  // domain, operator

std::map<Key, RegisterSubstitute::Find>& registry() {
  static std::map<Key, RegisterSubstitute::Find> all;
  return all;
}

}  // namespace

RegisterSubstitute::RegisterSubstitute(std::string_view domain, std::string_view op, Find find) {
  registry().emplace(Key{domain, op}, find);
}

std::optional<Substitute> substitute_for(const Node& reader, const Value& read) {
  const auto it = registry().find(Key{reader.domain, reader.op});
  return it == registry().end() ? std::nullopt : it->second(reader, read);
}

void substitute(Graph& graph, Node& reader, Substitute by) {
  reader.name = std::move(by.name);
  reader.attributes = std::move(by.attributes);
  graph.rewrite(reader, by.domain, by.op, by.inputs);
}

}  // namespace backpass
