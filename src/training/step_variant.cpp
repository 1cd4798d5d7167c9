#include "training/step_variant.hpp"

#include <algorithm>

#include "graph/clone.hpp"
#include "graph/halves.hpp"
#include "graph/overwriting.hpp"
#include "model/training_graph.hpp"
#include "plan/lower.hpp"
#include "training/bucket_nodes.hpp"

namespace backpass {

StepVariant::StepVariant(std::unique_ptr<Graph> graph, PassManager passes, std::span<const std::string> trainable,
                         const SessionOptions& options, Profiler* profiler)
    : trainable_(trainable), options_(options), profiler_(profiler), graph_(std::move(graph)) {
  lowered_ = options.optimize ? lower(*graph_, passes) : clone(*graph_).graph;
  reports_ = passes.reports();
}

std::shared_ptr<TrainingPlan> StepVariant::plan_of(const Graph& graph) const {
  return std::make_shared<TrainingPlan>(graph, first_half(graph), options_, profiler_);
}

const std::shared_ptr<TrainingPlan>& StepVariant::plan(bool accumulates) {
  accumulates = accumulates && !trainable_.empty();
  if (planned_ != nullptr && accumulates_ == accumulates) return planned_;
  if (planned_ != nullptr) planned_->release_memory();
  std::unique_ptr<Graph> graph;
  if (accumulates) graph = with_accumulators();
  if (!buckets_.empty()) {
    if (graph == nullptr) graph = clone(*lowered_).graph;
    add_bucket_nodes(*graph, buckets_);
  }
  planned_ = plan_of(graph == nullptr ? *lowered_ : *graph);
  if (graph != nullptr) stepping_.push_back(std::move(graph));  // those before it may be in use
  accumulates_ = accumulates;
  return planned_;
}

void StepVariant::set_buckets(std::vector<std::vector<std::size_t>> buckets) {
  buckets_ = std::move(buckets);
  planned_.reset();
}

std::vector<std::size_t> StepVariant::completion_order() const { return backpass::completion_order(*lowered_); }

namespace {

/// The node that follows this one; null at the end, and for none.
const Node* node_behind(const Graph& graph, const Node* node) {
  auto it = std::find(graph.nodes().begin(), graph.nodes().end(), node);
  return it == graph.nodes().end() || ++it == graph.nodes().end() ? nullptr : *it;
}

}  // namespace

/// Each gradient among the outputs gives way to its buffer, updated in place as soon as the gradient is there.
std::unique_ptr<Graph> StepVariant::with_accumulators() const {
  std::unique_ptr<Graph> accumulating = clone(*lowered_).graph;
  Graph& graph = *accumulating;
  Value* replaces = graph.add_value(kResetFlag, Type::tensor(DType::boolean, Shape{1}));
  for (std::size_t i = 0; i < trainable_.size(); ++i) {
    Value*& output = graph.outputs[graph.first_gradient + i];
    Value* buffer = graph.add_value(trainable_[i] + std::string(kBufferSuffix), output->type);
    Value* sum = graph.add_value(buffer->name + "_updated", output->type);
    graph.inputs.push_back(buffer);
    Node* node = graph.add_node("InPlaceAccumulatorV2", {buffer, output, replaces}, {nullptr, sum}, buffer->name,
                                "com.microsoft", node_behind(graph, output->producer));
    set_overwritten(*node, {-1, 0});
    output = sum;
  }
  graph.inputs.push_back(replaces);
  return accumulating;
}

const std::string& StepVariant::update_obstacle(const UpdateRule& rule) {
  if (updating_.graph == nullptr && updating_.obstacle.empty()) updating_ = with_updates(*lowered_, trainable_, rule);
  return updating_.obstacle;
}

const std::shared_ptr<TrainingPlan>& StepVariant::update_plan() {
  ensure(updating_.graph != nullptr, "a plan of an update that cannot be");
  if (planned_update_ == nullptr) planned_update_ = plan_of(*updating_.graph);
  return planned_update_;
}

void StepVariant::drop_update() {
  planned_update_.reset();
  updating_ = {};
}

}  // namespace backpass
