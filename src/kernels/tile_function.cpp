#include <map>

#include "backpass/error.hpp"
#include "kernels/tile.hpp"

namespace backpass {
namespace {

std::map<std::string_view, const TileFunction*>& registry() {
  static std::map<std::string_view, const TileFunction*> functions;
  return functions;
}

}  // namespace

RegisterTileFunction::RegisterTileFunction(const TileFunction& function) {
  bool added = registry().emplace(function.name, &function).second;
  ensure(added, "tile function ", function.name, " is registered twice");
}

const TileFunction* find_tile_function(std::string_view name) {
  auto it = registry().find(name);
  return it == registry().end() ? nullptr : it->second;
}

}  // namespace backpass
