#include "passes/list.hpp"
#include "passes/pack_rows.hpp"

namespace backpass {

void move_rows(Graph& graph, Reports& reports) {
  if (graph.parent != nullptr) return;
  free_shapes(graph);
  RowNeeds needs(graph, {});
  RowPacker packer(graph, needs);
  std::vector<std::pair<const RowSet*, std::string>> moved;
  for (const RowNeeds::Selection& found : needs.selections()) {
    if (packer.is_moved(found)) moved.emplace_back(found.of_data.set, found.selection.node->label());
  }
  if (moved.empty()) return;
  packer.run();
  for (const auto& [set, label] : moved) {
    const auto saving = packer.savings().find(set);
    if (saving == packer.savings().end()) continue;
    reports.push_back({.node = label,
                       .what = concat("moved ", label, " in front of ", saving->second.nodes, " nodes"),
                       .why = "only the rows that it chooses are needed of them",
                       .operations_saved = saving->second.operations.str(),
                       .bytes_saved = saving->second.bytes.str()});
  }
}

}  // namespace backpass
