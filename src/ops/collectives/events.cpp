// RecordEvent and WaitEvent: order among models that several threads of a process run at once.
//
// An event is a number. Waiting for it takes it back, so that the next run finds it as the first did.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "graph/op.hpp"
#include "support/interruption.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kNone = -1;  // the number of no event

class Events {
 public:
  void record(std::int64_t event) {
    if (event == kNone) return;
    const std::lock_guard lock(mutex_);
    recorded_.insert(event);
    change_.notify_all();
  }

  void wait_for(std::int64_t event) {
    constexpr std::chrono::milliseconds kPatience(20);
    std::unique_lock lock(mutex_);
    while (event != kNone && recorded_.erase(event) == 0) {
      change_.wait_for(lock, kPatience);
      lock.unlock();
      check_interruption();
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  std::set<std::int64_t> recorded_;
};

Events& events() {
  static Events all;
  return all;
}

void infer(InferContext& c) {
  c.require(c.dtype(0) == DType::int64, "event: got ", name_of(c.dtype(0)), ", expected int64");
  c.require(c.node.outputs.size() < c.input_count(), "got ", c.node.outputs.size(), " outputs for ",
            c.input_count() - 1, " tensors, expected at most one for each");
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) {
    c.dtype(i + 1);
    c.set_type(i, c.type(i + 1));
  }
}

std::int64_t event_of(const ComputeContext& c) {
  const std::vector<std::int64_t> number = c.tensor(0).to_ints();
  c.require(number.size() == 1 && number[0] >= kNone, "event: got ", number.empty() ? 0 : number[0],
            ", expected one number from -1 on");
  return number[0];
}

void hand_on(ComputeContext& c) {
  for (std::size_t i = 0; i < c.outputs.size(); ++i) c.outputs[i] = c.inputs[i + 1];
}

void compute_record(ComputeContext& c) {
  events().record(event_of(c));
  hand_on(c);
}

void compute_wait(ComputeContext& c) {
  events().wait_for(event_of(c));
  hand_on(c);
}

OpDef definition(std::string_view name, std::string_view doc, void (*compute)(ComputeContext&)) {
  return {.name = name,
          .domain = "com.microsoft",
          .doc = doc,
          .inputs = {2, -1},
          .outputs = {1, -1},
          .types = {DType::int64},
          .infer = infer,
          .compute = compute,
          .is_random = true,
          .has_effect = true};
}

const Register record_event{
    definition("RecordEvent", "Tells other threads that an event happened; hands tensors on.", compute_record)};
const Register wait_event{
    definition("WaitEvent", "Hands tensors on once an event was recorded, and forgets the event.", compute_wait)};

}  // namespace
}  // namespace backpass
