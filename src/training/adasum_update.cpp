#include "training/adasum_update.hpp"

#include <cstring>

#include "ops/collectives/adasum.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

/// out[i] = f(a[i], b[i]) for all elements.
template <class F>
void for_each_element(const Tensor& a, const Tensor& b, Tensor out, const F& f) {
  visit_real(out.dtype(), [&]<class T>() {
    const T* x = a.as<T>();
    const T* y = b.as<T>();
    T* z = out.as<T>();
    parallel_for(out.size(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) z[i] = f(x[i], y[i]);
    });
  });
}

}  // namespace

AdasumUpdate::AdasumUpdate(std::shared_ptr<Communicator> communicator, std::int64_t piece_bytes)
    : communicator_(std::move(communicator)), piece_bytes_(piece_bytes) {}

void AdasumUpdate::run(std::span<const Tensor> weights, std::span<const Tensor> changes,
                       const std::function<void()>& update) {
  if (before_.empty()) {
    for (const Tensor& w : weights) before_.emplace_back(w.dtype(), w.dims());
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].bytes() > 0) std::memcpy(before_[i].mutable_data(), weights[i].data(), weights[i].bytes());
  }
  update();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for_each_element(weights[i], before_[i], changes[i], [](auto now, auto then) { return now - then; });
  }
  combine(changes);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for_each_element(before_[i], changes[i], weights[i], [](auto then, auto change) { return then + change; });
  }
}

void AdasumUpdate::combine(std::span<const Tensor> changes) const {
  std::size_t first = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    bytes += static_cast<std::int64_t>(changes[i].bytes());
    const bool is_last = i + 1 == changes.size() || changes[i + 1].dtype() != changes[i].dtype();
    if (bytes < piece_bytes_ && !is_last) continue;
    adasum(*communicator_, changes.subspan(first, i + 1 - first));
    first = i + 1;
    bytes = 0;
  }
}

bool AdasumUpdate::is_everywhere(bool so) const {
  Tensor count(DType::int64, {1});
  *count.as<std::int64_t>() = so ? 1 : 0;
  communicator_->allreduce(count);
  return *count.as<std::int64_t>() == communicator_->size();
}

}  // namespace backpass
