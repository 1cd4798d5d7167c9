#include "gradient/fused.hpp"

#include "graph/infer.hpp"
#include "graph/op.hpp"

namespace backpass {

void set_by_fused(GradientContext& g, std::string_view op, std::vector<Value*> reads, std::size_t count,
                  std::string_view domain) {
  Graph& graph = g.b.graph;
  std::string name = concat(g.node.name.empty() ? g.y()->name : g.node.name, "_Grad/", op);
  std::vector<Value*> writes;
  for (std::size_t i = 0; i < count; ++i) {
    if (!g.wants(i)) continue;
    writes.resize(i + 1, nullptr);
    writes[i] = graph.add_value(name, g.x(i)->type);  // pooling gradients take the extents from here
  }
  if (writes.empty()) return;
  Node* node = graph.add_node(op, std::move(reads), writes, name, domain);
  ensure(node->def != nullptr, "operator ", domain, ".", op, " is not registered");
  node->attributes = g.node.attributes;
  infer_node(graph, *node);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    if (writes[i] != nullptr) g.set(i, writes[i]);
  }
}

}  // namespace backpass
