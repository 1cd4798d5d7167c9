#include "ops/custom/callback.hpp"

#include <mutex>
#include <unordered_map>

namespace backpass {
namespace {

struct Installed {
  std::mutex mutex;
  std::shared_ptr<const Callback> callback;
};

Installed& installed() {
  static Installed one;
  return one;
}

/// Contexts that are alive, by ticket: a number read from a tensor is never trusted to be an address.
class Tickets {
 public:
  std::int64_t add(std::shared_ptr<void> state) {
    std::lock_guard lock(mutex_);
    states_.emplace(++last_, std::move(state));
    return last_;
  }

  std::shared_ptr<void> find(std::int64_t ticket) {
    std::lock_guard lock(mutex_);
    auto it = states_.find(ticket);
    return it == states_.end() ? nullptr : it->second;
  }

  void remove(std::int64_t ticket) {
    std::shared_ptr<void> state;  // destroyed after the lock is gone: it may run any code
    std::lock_guard lock(mutex_);
    auto it = states_.find(ticket);
    if (it == states_.end()) return;
    state = std::move(it->second);
    states_.erase(it);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, std::shared_ptr<void>> states_;
};

Tickets& tickets() {
  static auto* all = new Tickets;  // outlives every tensor that static objects hold
  return *all;
}

}  // namespace

void set_torch_callback(Callback callback) {
  auto shared = callback ? std::make_shared<const Callback>(std::move(callback)) : nullptr;
  std::lock_guard lock(installed().mutex);
  installed().callback.swap(shared);
}

void run_torch_callback(ComputeContext& context) {
  std::shared_ptr<const Callback> callback;
  {
    std::lock_guard lock(installed().mutex);
    callback = installed().callback;
  }
  if (callback == nullptr) {
    fail<Unsupported>(context.node.label(), " operator: got ", context.node.domain, ".", context.node.op,
                      ", which runs inside PyTorch; run the model from Python, where backpass.torch carries it out");
  }
  (*callback)(context);
}

bool runs_foreign_code(const Node& node) {
  if (node.op == "PythonOp" || node.op == "PythonOpGrad") return true;
  const bool is_operator = node.op == "ATen" || node.op == "ATenGrad";
  return is_operator && node.attr_string("operator").find("::") != std::string::npos;
}

Tensor make_context(std::shared_ptr<void> state) {
  std::int64_t ticket = tickets().add(std::move(state));
  std::shared_ptr<const std::int64_t> owner(new std::int64_t(ticket), [](const std::int64_t* t) {
    tickets().remove(*t);
    delete t;
  });
  const std::int64_t* value = owner.get();
  return {DType::int64, {}, value, std::move(owner)};
}

std::shared_ptr<void> state_of(const Tensor& context) {
  const bool is_ticket = context.dtype() == DType::int64 && context.size() == 1;
  std::shared_ptr<void> state = is_ticket ? tickets().find(*context.as<std::int64_t>()) : nullptr;
  if (state == nullptr) {
    fail("context: got ", name_of(context.dtype()), shown(context.dims()),
         " that stands for nothing, expected what the forward node of the same run gave");
  }
  return state;
}

}  // namespace backpass
