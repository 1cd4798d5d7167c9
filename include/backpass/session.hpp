// Loading and running an ONNX model.
//
//   backpass::InferenceSession session("model.onnx");
//   auto outputs = session.run({}, {{"x", backpass::Tensor(backpass::DType::float32, {1, 3, 224, 224})}});
//
// A session may be used from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backpass/cancel.hpp"
#include "backpass/memory.hpp"
#include "backpass/problem.hpp"
#include "backpass/report.hpp"
#include "backpass/tensor.hpp"

namespace backpass {

struct SessionOptions {
  int num_threads = 0;     ///< threads of one run; 0: as many as OpenMP would use (OMP_NUM_THREADS, or the cores)
  bool optimize = true;    ///< rewrite the graph (folding, fusion, layouts) before planning
  bool reference = false;  ///< run node by node without a plan: slow, for comparison
  bool profile = false;    ///< record every step: see take_profile()
  int binding_cache = 16;  ///< how many sets of input extents keep their plan (least recently used go first)
  double time_limit = 0;   ///< seconds that one call may take before it throws Cancelled; 0: no limit
  std::shared_ptr<const CancelFlag> cancel = nullptr;  ///< when set, calls throw Cancelled
  /// Rewriting passes that do not run, by name, to find the one that is to blame. BACKPASS_DISABLE_PASSES=name,name
  /// adds to it.
  std::vector<std::string> disabled_passes = {};
  /// Look at every invariant of the graph after each pass; BACKPASS_VERIFY_PASSES=1 does so, too.
  bool verify_passes = false;
  /// What the arena may take, PlanReport::peak_bytes: a number of bytes, or at most 1, a share of what it would take
  /// otherwise. Training computes values of the forward pass again in the backward pass instead of keeping them, as few
  /// and as cheap ones as suffice. The results are the same to the bit. 0: no limit.
  double max_memory = 0;
  /// What training computes again however much memory there is: "cheap", what takes no products; "blocks", all but what
  /// stands between blocks; or results of operators, "Gelu+Dropout:1:2" (0: not, 1: yes; how many at most, -1: all).
  std::vector<std::string> recompute = {};
  /// Training looks at each batch: where less than this share of its rows is needed (have a label, are no padding), the
  /// others are left out of the computation. The results are the same. 0: never look.
  double sparse_threshold = 0.9;
};

/// Name and static type of an input or output. Extents are numbers, or names for what may vary.
struct ValueInfo {
  std::string name;
  std::string type;                ///< "tensor(float)", "seq(tensor(int64))", as onnxruntime spells it
  DType dtype = DType::undefined;  ///< of a tensor
  bool has_shape = false;
  std::vector<std::string> shape;
};

/// One executed step.
struct StepRecord {
  std::string name;  ///< node name
  std::string op;
  std::string shapes;  ///< "float32[2,3], float32[3] -> float32[2,3]"
  double start_us = 0;
  double duration_us = 0;
  std::int64_t bytes = 0;  ///< what it has to read and write at least
  std::int64_t flops = 0;  ///< of products, convolutions, attention and recurrent layers; 0 for others
  int threads = 0;         ///< that it may have used
};

/// A value that lies in the arena while steps `first` to `last` run.
struct PlannedBuffer {
  std::string name;
  std::string type;  ///< "float32[2,3]"
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  int first = 0;
  int last = 0;
};

/// What a training session holds from step to step, beside the arena.
struct HeldBytes {
  std::int64_t parameters = 0;  ///< frozen ones, too
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;
};

/// What planning decided for one set of input extents.
struct PlanReport {
  std::int64_t peak_bytes = 0;         ///< of the arena: intermediate values and scratch
  std::int64_t lower_bound_bytes = 0;  ///< largest set of simultaneously live buffers
  std::int64_t constant_bytes = 0;
  int steps = 0;
  int views = 0;
  int in_place = 0;
  int late_steps = 0;                         ///< steps whose shapes are only known while running
  std::string text;                           ///< printable: one line per step, then the largest values
  std::vector<PlannedBuffer> buffers = {};    ///< in order of their first step
  std::vector<std::int64_t> live_bytes = {};  ///< of buffers, while each step runs
  HeldBytes held = {};                        ///< of a training session; 0 elsewhere

  /// A picture, as SVG: steps to the right, places in the arena upwards, a rectangle per buffer.
  std::string svg() const;
};

using Feeds = std::vector<std::pair<std::string, RuntimeValue>>;

class InferenceSession {
 public:
  explicit InferenceSession(const std::filesystem::path& model, const SessionOptions& options = {});
  /// A serialized model. It is copied unless `owner` keeps it alive.
  InferenceSession(std::string_view bytes, std::shared_ptr<const void> owner, const SessionOptions& options = {});
  ~InferenceSession();
  InferenceSession(InferenceSession&&) noexcept;
  InferenceSession& operator=(InferenceSession&&) noexcept;

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;

  /// Runs the model. Empty `output_names` means all outputs, in order. Feeds are checked against the declared types.
  std::vector<RuntimeValue> run(std::span<const std::string> output_names, const Feeds& feeds) const;

  /// The same without allocating anything once the extents have been seen: inputs in the order of inputs(), outputs
  /// written into the given tensors, which must have the right type and extents.
  void run_into(std::span<const RuntimeValue> inputs, std::span<Tensor> outputs) const;

  /// The plan for these input extents, without running (feeds need extents only, contents are not read unless the
  /// model's shapes depend on them).
  PlanReport plan(const Feeds& feeds) const;
  /// What intermediate values take, as an expression of the model's symbols and, with their sizes, as a number.
  ArenaNeed arena_need(const Sizes& sizes = {}) const;

  /// What the rewriting passes did, one line each.
  const std::vector<std::string>& rewrites() const;
  /// The same with reasons and savings, and the time of every pass that ran.
  const std::vector<Report>& pass_reports() const;
  const std::vector<PassTime>& pass_times() const;
  /// The graph that runs, as text.
  std::string graph_text() const;
  /// The model after rewriting, before it is laid out for running: a serialized ONNX model that a session can load and
  /// that gives the same results. Operators of domain `backpass` in it are known to Backpass alone.
  std::string execution_model() const;

  /// Steps recorded since the last call (needs SessionOptions::profile).
  std::vector<StepRecord> take_profile() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Everything wrong with a model, without running it. An unreadable file is one problem.
std::vector<Problem> check(const std::filesystem::path& model);
std::vector<Problem> check(std::string_view bytes);

}  // namespace backpass
