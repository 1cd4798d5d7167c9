// How oneDNN is used here: one engine, primitives that one thread runs, errors as InternalBug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "backpass/error.hpp"

namespace backpass {

const dnnl::engine& dnnl_engine();

/// A primitive for one thread. oneDNN promises the same bits only for the same number of threads: which implementation
/// it takes, and how that one cuts its sums, may depend on it. So no primitive here ever sees more than one thread;
/// work for several is cut into parts beforehand, in a way that sizes alone decide. Make the primitive and its
/// descriptor under a ThreadScope of 1.
class SoloPrimitive {
 public:
  /// What is passed as which argument (DNNL_ARG_...), in which layout.
  using Operand = std::pair<int, dnnl::memory::desc>;

  static constexpr std::size_t kMostOperands = 6;

  SoloPrimitive() = default;
  SoloPrimitive(dnnl::primitive primitive, std::vector<Operand> operands);

  explicit operator bool() const { return state_ != nullptr; }
  /// One pointer per operand, in their order. Threads may call it at the same time.
  void run(std::initializer_list<const void*> data) const { run(data.begin(), data.size()); }
  void run(const void* const* data, std::size_t count) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A copy from one layout into another.
SoloPrimitive solo_reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to);

/// The same for threads together: cut along the first or second axis where that is possible.
class Relayout {
 public:
  Relayout(const dnnl::memory::desc& from, const dnnl::memory::desc& to);

  void run(const void* from, void* to) const;

 private:
  std::int64_t parts_ = 1, from_step_ = 0, to_step_ = 0;  ///< steps in elements
  SoloPrimitive reorder_;
};

}  // namespace backpass
