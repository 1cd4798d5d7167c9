#include <algorithm>
#include <cstring>

#include "capi/handles.hpp"

using namespace backpass;
using namespace backpass::capi;

namespace {

BpDType code_of(const Tensor& t) { return static_cast<BpDType>(t.dtype()); }

/// What the functions of a table do.
class TableCommunicator : public Communicator {
 public:
  explicit TableCommunicator(const BpCommunicator& table) : table_(table) {
    if (table_.size < 1 || table_.rank < 0 || table_.rank >= table_.size) {
      fail("communicator: got rank ", table_.rank, " of ", table_.size,
           ", expected a rank below the number of processes");
    }
    need(table_.broadcast, "broadcast");
    need(table_.start_allreduce, "start_allreduce");
    need(table_.wait, "wait");
    need(table_.allgather, "allgather");
  }

  int rank() const override { return table_.rank; }
  int size() const override { return table_.size; }

  void broadcast(Tensor values, int root) override {
    check("broadcast", values,
          table_.broadcast(context(), values.mutable_data(), values.size(), code_of(values), root));
  }

  void start_allreduce(Tensor values) override {
    started_.push_back(values);
    const int status = table_.start_allreduce(context(), values.mutable_data(), values.size(), code_of(values));
    check("allreduce", values, status);
  }

  void wait() override {
    if (started_.empty()) return;
    check("allreduce", started_.front(), table_.wait(context()));
    started_.clear();
  }

  void allgather(Tensor mine, Tensor all) override {
    const int status = table_.allgather(context(), mine.data(), mine.size(), code_of(mine), all.mutable_data());
    check("allgather", mine, status);
  }

  void reduce_scatter(Tensor all, Tensor mine) override {
    if (table_.reduce_scatter != nullptr) {
      const int status = table_.reduce_scatter(context(), all.data(), mine.mutable_data(), mine.size(), code_of(mine));
      check("reduce_scatter", mine, status);
      return;
    }
    Tensor sum(all.dtype(), all.dims());
    std::memcpy(sum.mutable_data(), all.data(), all.bytes());
    allreduce(sum);
    const std::size_t bytes = mine.bytes();
    std::memcpy(mine.mutable_data(), sum.as<std::byte>() + bytes * static_cast<std::size_t>(rank()), bytes);
  }

  void send(Tensor, int, int) override { fail<Unsupported>("send: the communicator of a C program has no messages"); }
  void receive(Tensor, int, int) override {
    fail<Unsupported>("receive: the communicator of a C program has no messages");
  }

 private:
  void* context() const { return table_.context; }

  void check(const char* operation, const Tensor& values, int status) const {
    if (status == 0) return;
    fail("[", operation, "] rank ", rank(), " of ", size(), ", ", values.size(), " elements of ",
         name_of(values.dtype()), ": the communicator gave ", status,
         ", expected 0; start again from the last checkpoint");
  }

  BpCommunicator table_;
  std::vector<Tensor> started_;  // whose memory is in use
};

}  // namespace

namespace backpass::capi {

std::shared_ptr<Communicator> to_communicator(const BpCommunicator* functions) {
  if (functions == nullptr) return nullptr;
  return std::make_shared<TableCommunicator>(*functions);
}

ParallelOptions to_parallel_options(const BpParallelOptions* given) {
  ParallelOptions options;
  if (given == nullptr) return options;
  if (given->bucket_bytes != 0) options.bucket_bytes = given->bucket_bytes;
  options.overlaps = given->sends_late == 0;
  options.averages_statistics = given->has_own_statistics == 0;
  options.zero_stage = given->zero_stage;
  return options;
}

}  // namespace backpass::capi

BpStatus bp_set_communicator(BpTrainingSession* session, const BpCommunicator* communicator,
                             const BpParallelOptions* options) {
  return guarded([&] {
    need(session, "session")
        .session->set_communicator(to_communicator(&need(communicator, "communicator")), to_parallel_options(options));
  });
}

BpStatus bp_set_exchanges(BpTrainingSession* session, int exchanges) {
  return guarded([&] { need(session, "session").session->set_exchanges(exchanges != 0); });
}

BpStatus bp_gather_optimizer_state(BpTrainingSession* session) {
  return guarded([&] { need(session, "session").session->gather_optimizer_state(); });
}
