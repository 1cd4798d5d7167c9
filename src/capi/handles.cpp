#include "capi/handles.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/value_info.hpp"
#include "support/printable.hpp"
#include "support/split_names.hpp"

namespace backpass::capi {
namespace {

thread_local std::string last_error;  // NOLINT: one per thread is what the interface promises

}  // namespace

BpStatus remember_error(BpStatus status, const char* text) noexcept {
  try {
    last_error = readable(text);
  } catch (...) {
    last_error.clear();
  }
  return status;
}

std::vector<RuntimeValue> to_values(const std::vector<ValueInfo>& infos, const BpTensor* const* inputs, size_t count) {
  if (count != infos.size()) fail("number of inputs: got ", count, ", expected ", infos.size());
  if (count > 0) need(inputs, "inputs");
  std::vector<RuntimeValue> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(inputs[i] == nullptr ? RuntimeValue() : RuntimeValue(inputs[i]->tensor));
  }
  return values;
}

void check_out(const std::vector<ValueInfo>& infos, BpTensor* const* outputs, size_t count) {
  if (count != infos.size()) fail("number of outputs: got ", count, ", expected ", infos.size());
  if (count > 0) need(outputs, "outputs");
  for (size_t i = 0; i < count; ++i) {
    if (outputs[i] == nullptr) continue;
    if (std::string problem = mismatch(infos[i], outputs[i]->tensor); !problem.empty())
      fail("output ", i, ": ", problem);
  }
}

void give_out(std::span<const RuntimeValue> results, BpTensor** outputs, size_t count) {
  if (count != results.size()) fail("number of outputs: got ", count, ", expected ", results.size());
  if (count > 0) need(outputs, "outputs");
  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = results[i].tensor;
    if (!results[i].is_tensor()) fail<Unsupported>("output ", i, " is no tensor");
    if (outputs[i] == nullptr) continue;
    const Tensor& given = outputs[i]->tensor;
    if (given.dtype() == t.dtype() && given.dims() == t.dims()) continue;
    fail("output ", i, ": got ", name_of(given.dtype()), to_string(given.dims()), ", expected ", name_of(t.dtype()),
         to_string(t.dims()));
  }
  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = results[i].tensor;
    if (outputs[i] == nullptr) {
      outputs[i] = new BpTensor{t};
    } else if (t.bytes() > 0) {
      std::memcpy(outputs[i]->tensor.mutable_data(), t.data(), t.bytes());
    }
  }
}

SessionOptions to_options(const BpSessionOptions* options) {
  SessionOptions result;
  if (options == nullptr) return result;
  result.num_threads = options->num_threads;
  if (options->binding_cache != 0) result.binding_cache = options->binding_cache;
  result.time_limit = options->time_limit;
  if (options->cancel != nullptr) result.cancel = options->cancel->flag;
  if (options->disabled_passes != nullptr) result.disabled_passes = split_names(options->disabled_passes);
  result.max_memory = options->max_memory;
  if (options->sparse_threshold != 0) result.sparse_threshold = std::max(options->sparse_threshold, 0.0);
  return result;
}

std::vector<std::string> to_names(const char* const* names, size_t count, const char* what) {
  if (count > 0) need(names, what);
  std::vector<std::string> made;
  for (size_t i = 0; i < count; ++i) made.emplace_back(&need(names[i], what));
  return made;
}

void give_name(const std::vector<ValueInfo>& infos, size_t index, const char** out) {
  if (index >= infos.size()) fail("index: got ", index, ", expected less than ", infos.size());
  need(out, "out") = infos[index].name.c_str();
}

}  // namespace backpass::capi

using namespace backpass;
using namespace backpass::capi;

const char* bp_last_error(void) { return last_error.c_str(); }

const char* bp_version(void) { return BACKPASS_VERSION; }

BpStatus bp_create_cancel_flag(BpCancelFlag** out) {
  return guarded([&] { need(out, "out") = new BpCancelFlag; });
}

void bp_set_cancel_flag(BpCancelFlag* flag, int is_set) {
  if (flag == nullptr) return;
  if (is_set != 0) {
    flag->flag->set();
  } else {
    flag->flag->clear();
  }
}

void bp_release_cancel_flag(BpCancelFlag* flag) { delete flag; }

BpStatus bp_create_tensor(BpDType dtype, const int64_t* dims, size_t rank, void* data, BpTensor** out) {
  return guarded([&] {
    if (!is_known_dtype(dtype) || dtype == static_cast<int>(DType::string)) {
      fail("element type: got ", static_cast<int>(dtype), ", expected one of BpDType");
    }
    constexpr size_t kLargestRank = 64;
    if (rank > kLargestRank) fail("rank: got ", rank, ", expected at most ", kLargestRank);
    if (rank > 0) need(dims, "dims");
    Dims extents(dims, dims + rank);
    const auto type = static_cast<DType>(dtype);
    element_count(extents);
    need(out, "out") = new BpTensor{data == nullptr ? Tensor(type, extents) : Tensor(type, extents, data, nullptr)};
  });
}

void bp_release_tensor(BpTensor* tensor) { delete tensor; }

BpStatus bp_tensor_data(BpTensor* tensor, void** out) {
  return guarded([&] { need(out, "out") = need(tensor, "tensor").tensor.mutable_data(); });
}

BpStatus bp_tensor_dtype(const BpTensor* tensor, BpDType* out) {
  return guarded([&] { need(out, "out") = static_cast<BpDType>(need(tensor, "tensor").tensor.dtype()); });
}

BpStatus bp_tensor_shape(const BpTensor* tensor, const int64_t** dims, size_t* rank) {
  return guarded([&] {
    const Dims& d = need(tensor, "tensor").tensor.dims();
    need(dims, "dims") = d.data();
    need(rank, "rank") = d.size();
  });
}

BpStatus bp_tensor_size(const BpTensor* tensor, int64_t* elements) {
  return guarded([&] { need(elements, "elements") = need(tensor, "tensor").tensor.size(); });
}
