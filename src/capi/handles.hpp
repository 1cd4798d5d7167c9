// What the opaque types of backpass.h are, and how exceptions become statuses.
#pragma once

#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/backpass.h"
#include "backpass/session.hpp"
#include "backpass/trainer.hpp"
#include "backpass/training.hpp"

struct BpTensor {
  backpass::Tensor tensor;
};

struct BpCheckpoint {
  std::shared_ptr<backpass::CheckpointState> state;
  std::optional<backpass::PropertyValue> property;  // the last one asked for
};

struct BpTrainingSession {
  std::unique_ptr<backpass::TrainingSession> session;
};

struct BpTrainer {
  std::unique_ptr<backpass::Trainer> trainer;
  std::vector<std::size_t> outputs, eval_outputs;  // how many, by program
};

struct BpSession {
  std::unique_ptr<backpass::InferenceSession> session;
};

struct BpCancelFlag {
  std::shared_ptr<backpass::CancelFlag> flag = std::make_shared<backpass::CancelFlag>();
};

namespace backpass::capi {

BpStatus remember_error(BpStatus status, const char* text) noexcept;

/// Runs f; no exception leaves.
template <class F>
BpStatus guarded(F&& f) noexcept {
  try {
    f();
    return BP_OK;
  } catch (const InvalidInput& e) {
    return remember_error(BP_INVALID_INPUT, e.what());
  } catch (const Unsupported& e) {
    return remember_error(BP_UNSUPPORTED, e.what());
  } catch (const Cancelled& e) {
    return remember_error(BP_CANCELLED, e.what());
  } catch (const std::bad_alloc&) {
    return remember_error(BP_INVALID_INPUT, "out of memory");
  } catch (const std::exception& e) {
    return remember_error(BP_INTERNAL_BUG, e.what());
  } catch (...) {
    return remember_error(BP_INTERNAL_BUG, "unknown error");
  }
}

/// Refuses null pointers where something is needed: require(session, "session").
template <class T>
T& need(T* pointer, const char* what) {
  if (pointer == nullptr) fail(what, ": got NULL, expected a pointer");
  return *pointer;
}

/// The tensors given, as many as there are inputs: nothing is read of a list of another length.
std::vector<RuntimeValue> to_values(const std::vector<ValueInfo>& infos, const BpTensor* const* inputs, size_t count);
/// What can be said of the outputs given before a step that would change something has run: number, types, extents.
void check_out(const std::vector<ValueInfo>& infos, BpTensor* const* outputs, size_t count);
/// Copies into the tensors given, makes new ones where there is none. Nothing is changed when one does not fit.
void give_out(std::span<const RuntimeValue> results, BpTensor** outputs, size_t count);
SessionOptions to_options(const BpSessionOptions* options);
std::vector<std::string> to_names(const char* const* names, size_t count, const char* what);
/// Null for NULL.
std::shared_ptr<Communicator> to_communicator(const BpCommunicator* functions);
ParallelOptions to_parallel_options(const BpParallelOptions* options);
void give_name(const std::vector<ValueInfo>& infos, size_t index, const char** out);

}  // namespace backpass::capi
