#include "training/read_later.hpp"

#include <set>

#include "ops/custom/callback.hpp"

namespace backpass {
namespace {

/// What a node that PyTorch runs keeps for its gradient is this output of it; none when it is another node.
std::optional<std::size_t> context_of(const Node& node) {
  if (node.op != "PythonOp" && node.op != "ATen") return std::nullopt;
  const std::size_t k = node.attr_ints("output_types").size();
  return node.output(k) == nullptr ? std::nullopt : std::optional(k);
}

class Finding {
 public:
  explicit Finding(const Program& program) : program_(program) {}

  void find_reads(const NodeSet& repeated) {
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (!program_.aliases.is_needed[s] || reads_extents_only(*step.node)) continue;
      const bool is_later = program_.pause >= 0 && static_cast<int>(s) > program_.pause;
      if (is_later) step.for_each_read([&](int v) { add(memory(v)); });
      for (std::size_t i = 0; repeated.count(step.node) != 0 && i < step.inputs.size(); ++i) {
        const int v = step.inputs[input_of_copy(*step.node, i)];
        if (v >= 0) add(memory(v));
      }
    }
  }

  ReadLater sorted_out(std::size_t user_outputs) const {
    ReadLater later;
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      if (handed_on_.count(memory(program_.inputs[i])) != 0) later.inputs.push_back(i);
    }
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) {
      const int m = memory(program_.outputs[k]);
      const Node* producer = producer_of(m);
      if (k >= user_outputs) {
        if (producer != nullptr && runs_foreign_code(*producer)) later.gradients.push_back(k - user_outputs);
        continue;
      }
      if (read_.count(m) != 0) later.outputs.push_back(k);
      if (producer != nullptr && context_of(*producer)) later.kept.push_back(k);
    }
    return later;
  }

 private:
  int memory(int v) const { return program_.aliases.memory[static_cast<std::size_t>(v)]; }

  /// The step that first writes the memory; null for inputs and constants.
  const Step* writer_of(int m) const {
    const int s = program_.aliases.memories[static_cast<std::size_t>(m)].first;
    return s < 0 ? nullptr : &program_.steps[static_cast<std::size_t>(s)];
  }
  const Node* producer_of(int m) const { return writer_of(m) == nullptr ? nullptr : writer_of(m)->node; }

  void add(int m) {
    read_.insert(m);
    add_with_sources(m);
  }

  /// Adds memory, and what may have been handed on to it as it is: by a body, or by a function that kept it.
  void add_with_sources(int m) {
    if (!handed_on_.insert(m).second || writer_of(m) == nullptr) return;
    const Step& step = *writer_of(m);
    const std::optional<std::size_t> context = context_of(*step.node);
    const bool is_context = context && step.outputs[*context] >= 0 && memory(step.outputs[*context]) == m;
    if (step.kind != StepKind::control && !is_context) return;
    step.for_each_read([&](int v) { add_with_sources(memory(v)); });
  }

  const Program& program_;
  std::set<int> read_;
  std::set<int> handed_on_;
};

}  // namespace

ReadLater find_read_later(const Program& program, std::size_t user_outputs, const NodeSet& repeated) {
  Finding finding(program);
  finding.find_reads(repeated);
  return finding.sorted_out(user_outputs);
}

}  // namespace backpass
