// Graph -> Program: values numbered, nodes listed, subgraphs turned into programs of their own, and for every value the
// memory it lies in. Nothing here depends on the numbers behind symbolic extents: those come with a Binding
// (runtime/binding.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "plan/aliases.hpp"

namespace backpass {

struct Program;

/// A subgraph of a step, and where its captured values come from.
struct SubProgram {
  std::string attribute;
  std::unique_ptr<Program> program;
  std::vector<int> captured;  ///< numbers of the outer values, in the order of Program::inputs after the formal ones
};

enum class StepKind : std::uint8_t {
  view,        ///< its result is its input under another shape: nothing is done
  tile,        ///< element by element, through a tile program
  kernel,      ///< a prepared kernel
  accumulate,  ///< the same, writing over inputs of the program (graph/overwriting.hpp)
  control,     ///< runs programs of its own; its results have places where their extents are known before
  late,        ///< evaluated while running: sequences, strings, callbacks, results whose sizes data decide
  pause,       ///< hands out the first outputs and waits
};

struct Step {
  const Node* node = nullptr;
  StepKind kind = StepKind::kernel;
  std::vector<int> inputs;   ///< value numbers; -1 where omitted
  std::vector<int> outputs;  ///< value numbers; -1 where not wanted
  std::vector<SubProgram> subprograms;

  /// Everything the step reads.
  template <class F>
  void for_each_read(F&& f) const {
    for (int v : inputs) {
      if (v >= 0) f(v);
    }
    for (const SubProgram& s : subprograms) {
      for (int v : s.captured) f(v);
    }
  }
};

struct Program {
  const Graph* graph = nullptr;
  std::vector<const Value*> values;
  std::vector<Step> steps;
  std::vector<int> inputs;  ///< graph inputs, then captures
  std::vector<int> outputs;
  int pause = -1;  ///< the step where a run hands out its first outputs and waits (OpDef::is_pause); -1: none
  Aliases aliases;
};

/// The graph must outlive the program and not change.
std::unique_ptr<Program> make_program(const Graph& graph);

}  // namespace backpass
