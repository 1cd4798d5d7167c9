// Communicators that are written in Python: their functions get numpy views of the engine's memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <map>
#include <vector>

#include "backpass/parallel.hpp"
#include "bindings.hpp"
#include "support/convert.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// The object is released under the interpreter lock, by whatever thread; not at all once the interpreter is gone.
std::shared_ptr<PyObject> keep(nb::object object) {
  return {object.release().ptr(), [](PyObject* p) {
            if (Py_IsInitialized() == 0) return;
            const nb::gil_scoped_acquire gil;
            nb::handle(p).dec_ref();
          }};
}

nb::object array_of(const Tensor& values) { return nb::cast(values).attr("array")(); }

/// numpy has no arithmetic for these, networks neither: sums are done in float32.
bool is_summed_as_float(DType dtype) { return is_float(dtype) && bit_width(dtype) <= 16; }

Tensor as_float(const Tensor& values) {
  Tensor wide(DType::float32, values.dims());
  convert_loop(values.dtype(), DType::float32)(values.data(), wide.mutable_data(), values.size());
  return wide;
}

void copy_back(const Tensor& wide, Tensor& values) {
  convert_loop(DType::float32, values.dtype())(wide.data(), values.mutable_data(), values.size());
}

class PythonCommunicator : public Communicator {
 public:
  explicit PythonCommunicator(nb::object object)
      : rank_(number(object, "rank")), size_(number(object, "size")), object_(keep(std::move(object))) {
    if (size_ < 1 || rank_ < 0 || rank_ >= size_) {
      fail("communicator: got rank ", rank_, " of ", size_, ", expected a rank below the number of processes");
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void broadcast(Tensor values, int root) override { call("broadcast", values, root); }
  void send(Tensor values, int to, int tag) override { call("send", values, to, tag); }
  void receive(Tensor values, int from, int tag) override { call("recv", values, from, tag); }

  void allgather(Tensor mine, Tensor all) override {
    require_parts(mine, all);
    const nb::gil_scoped_acquire gil;
    object().attr("allgather")(array_of(mine), array_of(all));
  }

  void reduce_scatter(Tensor all, Tensor mine) override {
    start_reduce_scatter(std::move(all), std::move(mine));
    wait();
  }

  void start_reduce_scatter(Tensor all, Tensor mine) override {
    require_parts(mine, all);
    const nb::gil_scoped_acquire gil;
    Started started{mine, mine, all, nullptr};
    if (is_summed_as_float(mine.dtype())) {
      started.summed = Tensor(DType::float32, mine.dims());
      started.read = as_float(all);
    }
    const nb::object from = array_of(started.read), to = array_of(started.summed);
    keep_started(std::move(started), object().attr("reduce_scatter")(from, to));
  }

  void start_allreduce(Tensor values) override {
    const nb::gil_scoped_acquire gil;
    Started started{values, values, {}, nullptr};
    if (is_summed_as_float(values.dtype())) started.summed = as_float(values);
    const nb::object array = array_of(started.summed);
    keep_started(std::move(started), object().attr("allreduce")(array));
  }

  void wait() override {
    if (started_.empty()) return;
    std::vector<Started> pending = std::exchange(started_, {});
    const nb::gil_scoped_acquire gil;
    try {
      for (Started& started : pending) {
        if (started.handle != nullptr) nb::handle(started.handle.get()).attr("wait")();
        if (started.summed.data() != started.values.data()) copy_back(started.summed, started.values);
      }
    } catch (...) {  // others may still write to the memory
      abandoned_.insert(abandoned_.end(), pending.begin(), pending.end());
      throw;
    }
  }

  /// Groups are asked for once: two communicators over one object would not see what the other started.
  std::shared_ptr<Communicator> subgroup(int kind) override {
    const nb::gil_scoped_acquire gil;
    if (const auto known = groups_.find(kind); known != groups_.end()) return known->second;
    std::shared_ptr<Communicator> found;
    if (nb::hasattr(object(), "subgroup")) {
      nb::object group = object().attr("subgroup")(kind);
      if (!group.is_none()) found = std::make_shared<PythonCommunicator>(std::move(group));
    }
    return groups_.emplace(kind, std::move(found)).first->second;
  }

  nb::object object() const { return nb::borrow(object_.get()); }

 private:
  /// `summed` is what the network writes to, `values` what its numbers are for.
  struct Started {
    Tensor values, summed, read;
    std::shared_ptr<PyObject> handle;
  };

  void keep_started(Started started, nb::object handle) {
    if (!handle.is_none()) started.handle = keep(std::move(handle));
    started_.push_back(std::move(started));
  }

  /// An attribute or a method without arguments.
  static int number(const nb::object& object, const char* name) {
    const nb::object found = object.attr(name);
    return nb::cast<int>(PyCallable_Check(found.ptr()) != 0 ? found() : found);
  }

  void require_parts(const Tensor& mine, const Tensor& all) const {
    if (all.dtype() == mine.dtype() && all.size() == mine.size() * size_) return;
    fail("communicator: got ", name_of(all.dtype()), shown(all.dims()), " for all ", size_, " processes and ",
         name_of(mine.dtype()), shown(mine.dims()), " for one, expected ", size_, " times as many of the same type");
  }

  template <class... Numbers>
  void call(const char* function, const Tensor& values, Numbers... numbers) {
    const nb::gil_scoped_acquire gil;
    object().attr(function)(array_of(values), numbers...);
  }

  int rank_, size_;
  std::shared_ptr<PyObject> object_;
  std::vector<Started> started_, abandoned_;
  std::map<int, std::shared_ptr<Communicator>> groups_;
};

/// `with CommunicatorScope(communicator):` of Python.
class PythonScope {
 public:
  explicit PythonScope(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  void enter() { scope_ = std::make_unique<CommunicatorScope>(communicator_); }
  void exit(const nb::args&) { scope_.reset(); }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<CommunicatorScope> scope_;
};

}  // namespace

std::shared_ptr<Communicator> to_communicator(nb::handle h) {
  if (h.is_none()) return nullptr;
  if (nb::isinstance<Communicator>(h)) return nb::cast<std::shared_ptr<Communicator>>(h);
  return std::make_shared<PythonCommunicator>(nb::borrow(h));
}

void bind_parallel(nb::module_& m) {
  nb::class_<ParallelOptions>(m, "ParallelOptions", "How training is shared out.")
      .def(nb::init<>())
      .def_rw("bucket_bytes", &ParallelOptions::bucket_bytes)
      .def_rw("overlaps", &ParallelOptions::overlaps)
      .def_rw("averages_statistics", &ParallelOptions::averages_statistics)
      .def_rw("zero_stage", &ParallelOptions::zero_stage)
      .def_rw("adasum", &ParallelOptions::adasum)
      .def("__repr__", &describe_fields);
  nb::class_<Communicator>(m, "Communicator", "What processes that train together exchange tensors by.")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def("broadcast", &Communicator::broadcast, nb::arg("values"), nb::arg("root"), NoGil())
      .def("start_allreduce", &Communicator::start_allreduce, nb::arg("values"), NoGil())
      .def("wait", &Communicator::wait, NoGil())
      .def("allreduce", &Communicator::allreduce, nb::arg("values"), NoGil())
      .def("allgather", &Communicator::allgather, nb::arg("mine"), nb::arg("all"), NoGil())
      .def("reduce_scatter", &Communicator::reduce_scatter, nb::arg("all"), nb::arg("mine"), NoGil())
      .def("subgroup", &Communicator::subgroup, nb::arg("kind"),
           nb::sig("def subgroup(self, kind: int) -> Communicator | None"))
      .def("send", &Communicator::send, nb::arg("values"), nb::arg("to"), nb::arg("tag"), NoGil())
      .def("receive", &Communicator::receive, nb::arg("values"), nb::arg("from_"), nb::arg("tag"), NoGil());
  nb::class_<PythonCommunicator, Communicator>(
      m, "PythonCommunicator",
      "Any object with rank, size, broadcast(array, root), allreduce(array) and reduce_scatter(all, mine), which "
      "return None or a handle with wait(), allgather(mine, all), send(array, to, tag), recv(array, source, tag), and, "
      "where collective operators name groups, subgroup(kind), which returns None or another such object.")
      .def(nb::init<nb::object>(), nb::arg("object"))
      .def_prop_ro("object", &PythonCommunicator::object);
  nb::class_<PythonScope>(m, "CommunicatorScope", "The communicator of this thread while `with` lasts.")
      .def(nb::init<std::shared_ptr<Communicator>>(), nb::arg("communicator").none())
      .def("__enter__", &PythonScope::enter)
      .def("__exit__", &PythonScope::exit, nb::sig("def __exit__(self, *exception: object) -> None"));
  m.def("communicator", &communicator, nb::sig("def communicator() -> Communicator | None"),
        "That of this thread, otherwise of the process, otherwise None.");
  m.def("set_communicator", &set_communicator, nb::arg("communicator").none(), "That of the process.");
}
