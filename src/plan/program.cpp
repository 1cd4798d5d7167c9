#include "plan/program.hpp"

#include <algorithm>
#include <unordered_map>

#include "graph/op.hpp"
#include "graph/overwriting.hpp"
#include "plan/schedule.hpp"

namespace backpass {
namespace {

class Numbering {
 public:
  explicit Numbering(Program& program) : program_(program) {}

  int of(const Value* v) {
    if (v == nullptr) return -1;
    auto [it, added] = numbers_.emplace(v, static_cast<int>(program_.values.size()));
    if (added) program_.values.push_back(v);
    return it->second;
  }

  std::vector<int> of_all(const std::vector<Value*>& values) {
    std::vector<int> numbers;
    numbers.reserve(values.size());
    for (const Value* v : values) numbers.push_back(of(v));
    return numbers;
  }

 private:
  Program& program_;
  std::unordered_map<const Value*, int> numbers_;
};

bool is_plain(const Value* v) { return v == nullptr || (v->type.is_tensor() && v->type.dtype != DType::string); }

StepKind kind_of(const Node& node) {
  if (node.def == nullptr) return StepKind::late;  // in a branch that is never taken
  const OpDef& def = *node.def;
  if (def.is_pause) return StepKind::pause;
  if (!node.subgraphs.empty()) return StepKind::control;
  const bool is_planned = def.prepare != nullptr && std::all_of(node.inputs.begin(), node.inputs.end(), is_plain) &&
                          std::all_of(node.outputs.begin(), node.outputs.end(), is_plain);
  if (!is_planned) return StepKind::late;
  if (!overwritten_by(node).empty()) return StepKind::accumulate;
  if (def.is_view) return StepKind::view;
  return def.tile != nullptr || def.is_tile_program ? StepKind::tile : StepKind::kernel;
}

}  // namespace

std::unique_ptr<Program> make_program(const Graph& graph) {
  auto program = std::make_unique<Program>();
  program->graph = &graph;
  Numbering number(*program);
  program->inputs = number.of_all(graph.inputs);
  for (const Capture& c : graph.captures) program->inputs.push_back(number.of(c.inner));
  for (const Node* node : order_to_run(graph)) {
    Step step;
    step.node = node;
    step.kind = kind_of(*node);
    step.inputs = number.of_all(node->inputs);
    step.outputs = number.of_all(node->outputs);
    for (const auto& [attribute, sub] : node->subgraphs) {
      SubProgram s{attribute, make_program(*sub), {}};
      for (const Capture& c : sub->captures) s.captured.push_back(number.of(c.outer));
      step.subprograms.push_back(std::move(s));
    }
    if (step.kind == StepKind::pause) program->pause = static_cast<int>(program->steps.size());
    program->steps.push_back(std::move(step));
  }
  program->outputs = number.of_all(graph.outputs);
  program->aliases = find_aliases(*program);
  return program;
}

}  // namespace backpass
