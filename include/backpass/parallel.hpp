// Processes that train together: what they exchange tensors by.
//
//   class OverMyNetwork : public backpass::Communicator { ... };
//   backpass::set_communicator(std::make_shared<OverMyNetwork>());
//
// The engine opens no connection of its own. It asks an object for sums, copies and messages; Python has such objects
// for torch.distributed and MPI (backpass.parallel). Every process calls the same functions, with tensors of the same
// size and element type, in the same order; that is the caller's duty, as with MPI.
#pragma once

#include <memory>

#include "backpass/tensor.hpp"

namespace backpass {

/// All functions work in place, on memory that the caller keeps as it is until they are done. A process that cannot go
/// on throws; so do all others, when they wait for it.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator();

  virtual int rank() const = 0;  ///< from 0
  virtual int size() const = 0;

  /// Everybody's values become those of `root`.
  virtual void broadcast(Tensor values, int root) = 0;

  /// Begins to replace values by their sum over all processes, which has the same bits everywhere. It may go on after
  /// the function returns; the tensor's memory is neither read nor written until wait().
  virtual void start_allreduce(Tensor values) = 0;
  /// Until everything that was started is done.
  virtual void wait() = 0;
  void allreduce(Tensor values);  ///< start_allreduce and wait

  /// `all` has size() times the elements of `mine`: everybody's, by rank.
  virtual void allgather(Tensor mine, Tensor all) = 0;
  /// `mine` becomes the part of the sum of everybody's `all` that belongs to this rank.
  virtual void reduce_scatter(Tensor all, Tensor mine) = 0;
  /// The same, going on until wait() if it can.
  virtual void start_reduce_scatter(Tensor all, Tensor mine);

  /// Those of a group that this process is in: data parallel (kind 1), data parallel on one machine (2) and across
  /// machines (3), horizontal (4) and model parallel (5). Null: such groups were not made; all form the only one.
  virtual std::shared_ptr<Communicator> subgroup(int kind);

  virtual void send(Tensor values, int to, int tag) = 0;
  virtual void receive(Tensor values, int from, int tag) = 0;
};

/// How training is shared out.
struct ParallelOptions {
  /// Gradients are sent in pieces of about this size, each as soon as backward has completed it.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  bool overlaps = true;             ///< false: all gradients are sent when the step is over; the bits are the same
  bool averages_statistics = true;  ///< running statistics are averaged after each step; false: everybody keeps its own
  /// 1: every process keeps and updates its share of the optimizer's state only, and gets the rest of the new weights
  /// from the others (ZeRO stage 1).
  int zero_stage = 0;
  /// Every process updates by gradients of its own, and what they would change is combined by Adasum: no sum that grows
  /// with their number, but their mean where they agree. For Trainer; not together with zero_stage.
  bool adasum = false;
};

/// What collective operators (NcclAllReduce, Send ...) use: the communicator of this thread if it has one, otherwise of
/// the process; null where there is neither.
std::shared_ptr<Communicator> communicator();
/// That of the process. Null takes it back.
void set_communicator(std::shared_ptr<Communicator> communicator);

/// The communicator of this thread, as long as the scope lives: how several ranks run in one process.
class CommunicatorScope {
 public:
  explicit CommunicatorScope(std::shared_ptr<Communicator> communicator);
  CommunicatorScope(const CommunicatorScope&) = delete;
  CommunicatorScope& operator=(const CommunicatorScope&) = delete;
  ~CommunicatorScope();

 private:
  std::shared_ptr<Communicator> before_;
};

}  // namespace backpass
