// Runs a module on behalf of a framework that keeps the parameters and drives the backward pass: forward now, backward
// later or never, any number of them under way at once.
//
// Which outputs gradients will arrive for is only known when they do. The session expects them for the scalar outputs
// (a loss), or for all when there is none; should others arrive, it rebuilds for those, repeats the forward pass from
// the same inputs and random numbers, and expects them from then on.
//
// Each batch is looked at, and runs as the graph that suits its data (SessionOptions::sparse_threshold). What is told
// of graphs and plans is about the one that ran last.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backpass/session.hpp"

namespace backpass {

class ModuleSession {
 public:
  /// `requires_grad`: inputs of the model whose gradients backward() gives. `constant_outputs`: outputs that are not to
  /// be differentiated, such as new values of buffers. `steady_inputs`: those that nobody changes between forward() and
  /// backward(), parameters: backward() may read them, to compute again what it would have to keep. Throws listing
  /// every problem.
  ModuleSession(std::string_view bytes, std::shared_ptr<const void> owner, std::vector<std::string> requires_grad,
                const SessionOptions& options, std::span<const std::string> constant_outputs = {},
                std::span<const std::string> steady_inputs = {});
  ~ModuleSession();

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  const std::vector<std::string>& requires_grad() const;
  /// Whether an output depends differentiably on an input that requires a gradient, and is not constant.
  const std::vector<bool>& differentiable_outputs() const;
  /// The inputs among requires_grad() that an output depends on differentiably, be it constant or not.
  std::vector<std::string> depends_on(std::string_view output) const;

  /// A forward pass whose backward pass is still to come. Keeps what that will need; dropping it lets go.
  class Pending;

  /// Whether a pass draws random numbers. They follow from the `seed` given to it; without one the session counts.
  bool is_random() const;

  /// Without gradients.
  std::vector<RuntimeValue> forward(std::vector<RuntimeValue> inputs, std::optional<std::uint64_t> seed = {});
  /// The outputs, and what backward() needs. Inputs and outputs must stay as they are until then.
  std::shared_ptr<Pending> forward(std::vector<RuntimeValue> inputs, std::vector<RuntimeValue>& outputs,
                                   std::optional<std::uint64_t> seed = {});
  /// One gradient per entry of requires_grad(); none where nothing flows back. `seeds`: one per output, none where no
  /// gradient arrived (or where the output is not differentiable).
  /// Called again with the same pass, it repeats that first.
  std::vector<RuntimeValue> backward(std::shared_ptr<Pending> pending, std::span<const RuntimeValue> seeds);
  /// Whether backward() would have to repeat the forward pass, and so read inputs again that it needs no more
  /// otherwise. `arrived`: of each output, whether there is a gradient.
  bool repeats(const Pending& pending, std::vector<bool> arrived) const;

  /// Bytes that passes take whose gradients were not those expected when max_memory was found to suffice, and for which
  /// it does not; 0 when it does.
  std::size_t memory_excess();
  /// Inputs and outputs whose contents backward() reads where they are, should gradients arrive as expected: those that
  /// must stay as they are.
  using Places = std::pair<std::vector<std::size_t>, std::vector<std::size_t>>;
  static Places read_by_backward(const Pending& pending);
  /// Of the latest pass, or of one whose data are dense.
  Places read_by_backward();
  /// Which of its graphs a pass runs. Those of one number read the same places.
  static std::size_t graph_number(const Pending& pending);

  /// What the latest batch is like, and how passes were chosen by the data of batches so far.
  DataReport densities();
  /// The same with the operations and bytes of a step; builds what has to be known for that.
  DataReport data_report();

  /// The model with its gradients and the YieldOp, before optimisation, as a serialized ONNX model.
  std::string training_model();
  /// The same after it, before it is laid out for running. Operators of domain `backpass` in it are known to Backpass
  /// alone.
  std::string execution_model();
  /// The graph that runs (with gradients, if any are asked for) as text, and what the passes did to it.
  std::string graph_text();
  std::vector<std::string> rewrites();
  std::vector<Report> pass_reports();
  std::vector<PassTime> pass_times();
  PlanReport plan(const std::vector<RuntimeValue>& inputs);
  /// What intermediate values of both passes take, as an expression of the model's symbols and, with their sizes, as a
  /// number.
  ArenaNeed arena_need(const Sizes& sizes = {});
  std::vector<StepRecord> take_profile();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace backpass
