#include "gradient/composite.hpp"

#include <utility>

#include "gradient/reverse.hpp"

namespace backpass {

void composite_gradient(GradientContext& g, std::vector<Value*> (*write)(Builder&, const Node&)) {
  // Copies of what takes part: gradients then belong to this use of a value and not to others.
  std::vector<Value*> inputs = g.node.inputs;
  std::vector<std::size_t> positions;
  std::vector<Value*> wrt;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!g.wants(i)) continue;
    inputs[i] = g.op("Identity", {g.x(i)});
    positions.push_back(i);
    wrt.push_back(inputs[i]);
  }
  const Node node{.name = g.node.name,
                  .op = g.node.op,
                  .domain = g.node.domain,
                  .def = g.node.def,
                  .inputs = GraphList(std::move(inputs)),
                  .outputs = g.node.outputs,
                  .attributes = g.node.attributes,
                  .subgraphs = {}};
  std::vector<Value*> written = write(g.b, node);
  std::vector<Value*> outputs;
  std::vector<Value*> seeds;
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (!g.has_dy(k)) continue;
    ensure(k < written.size() && written[k] != nullptr, shown(g.node), " gradient: output ", k, " was not written");
    outputs.push_back(written[k]);
    seeds.push_back(g.op("Identity", {g.dy(k)}));
  }
  const GradientOptions options{.standard_only = true};
  std::vector<Value*> gradients = add_gradients(g.b.graph, outputs, seeds, wrt, options);
  for (std::size_t k = 0; k < positions.size(); ++k) g.set(positions[k], gradients[k]);
}

}  // namespace backpass
