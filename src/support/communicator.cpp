#include <mutex>
#include <utility>

#include "backpass/parallel.hpp"

namespace backpass {

namespace {

std::mutex& lock() {
  static std::mutex mutex;
  return mutex;
}

std::shared_ptr<Communicator>& of_process() {
  static std::shared_ptr<Communicator> current;
  return current;
}

std::shared_ptr<Communicator>& of_thread() {
  static thread_local std::shared_ptr<Communicator> current;
  return current;
}

}  // namespace

Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::subgroup(int /*kind*/) { return nullptr; }

void Communicator::allreduce(Tensor values) {
  start_allreduce(std::move(values));
  wait();
}

void Communicator::start_reduce_scatter(Tensor all, Tensor mine) { reduce_scatter(std::move(all), std::move(mine)); }

std::shared_ptr<Communicator> communicator() {
  if (of_thread() != nullptr) return of_thread();
  const std::lock_guard guard(lock());
  return of_process();
}

void set_communicator(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard guard(lock());
  of_process().swap(communicator);
}

CommunicatorScope::CommunicatorScope(std::shared_ptr<Communicator> communicator)
    : before_(std::exchange(of_thread(), std::move(communicator))) {}

CommunicatorScope::~CommunicatorScope() { of_thread() = std::move(before_); }

}  // namespace backpass
