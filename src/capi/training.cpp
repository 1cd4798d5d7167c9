#include <algorithm>

#include "capi/handles.hpp"

using namespace backpass;
using namespace backpass::capi;

namespace {

TrainingSession& session_of(BpTrainingSession* s) { return *need(s, "session").session; }
const TrainingSession& session_of(const BpTrainingSession* s) { return *need(s, "session").session; }

ModelSource from_path(const char* path) { return path == nullptr ? ModelSource() : ModelSource(path); }

ModelSource from_buffer(const void* data, size_t bytes) {
  return data == nullptr ? ModelSource() : ModelSource::from_bytes({static_cast<const char*>(data), bytes});
}

void create(BpCheckpoint* state, const TrainingArtifacts& artifacts, const BpSessionOptions* options,
            BpTrainingSession** out) {
  need(out, "out");
  auto session = std::make_unique<TrainingSession>(need(state, "state").state, artifacts, to_options(options));
  *out = new BpTrainingSession{std::move(session)};
}

}  // namespace

BpStatus bp_create_training_session(BpCheckpoint* state, const char* training, const char* eval, const char* optimizer,
                                    const BpSessionOptions* options, BpTrainingSession** out) {
  return guarded([&] { create(state, {from_path(training), from_path(eval), from_path(optimizer)}, options, out); });
}

BpStatus bp_create_training_session_from_buffer(BpCheckpoint* state, const void* training, size_t training_bytes,
                                                const void* eval, size_t eval_bytes, const void* optimizer,
                                                size_t optimizer_bytes, const BpSessionOptions* options,
                                                BpTrainingSession** out) {
  return guarded([&] {
    create(
        state,
        {from_buffer(training, training_bytes), from_buffer(eval, eval_bytes), from_buffer(optimizer, optimizer_bytes)},
        options, out);
  });
}

void bp_release_training_session(BpTrainingSession* session) { delete session; }

BpStatus bp_get_training_input_count(const BpTrainingSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).inputs(true).size(); });
}

BpStatus bp_get_training_input_name(const BpTrainingSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).inputs(true), index, out); });
}

BpStatus bp_get_training_output_count(const BpTrainingSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).outputs(true).size(); });
}

BpStatus bp_get_training_output_name(const BpTrainingSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).outputs(true), index, out); });
}

BpStatus bp_get_eval_input_count(const BpTrainingSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).inputs(false).size(); });
}

BpStatus bp_get_eval_input_name(const BpTrainingSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).inputs(false), index, out); });
}

BpStatus bp_get_eval_output_count(const BpTrainingSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).outputs(false).size(); });
}

BpStatus bp_get_eval_output_name(const BpTrainingSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).outputs(false), index, out); });
}

BpStatus bp_train_step(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count,
                       BpTensor** outputs, size_t output_count) {
  return guarded([&] {
    TrainingSession& s = session_of(session);
    const std::vector<RuntimeValue> values = to_values(s.inputs(true), inputs, input_count);
    check_out(s.outputs(true), outputs, output_count);
    give_out(s.train_step(values), outputs, output_count);
  });
}

BpStatus bp_train_and_update(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count,
                             BpTensor** outputs, size_t output_count) {
  return guarded([&] {
    TrainingSession& s = session_of(session);
    const std::vector<RuntimeValue> values = to_values(s.inputs(true), inputs, input_count);
    check_out(s.outputs(true), outputs, output_count);
    give_out(s.train_and_update(values), outputs, output_count);
  });
}

BpStatus bp_eval_step(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count, BpTensor** outputs,
                      size_t output_count) {
  return guarded([&] {
    TrainingSession& s = session_of(session);
    give_out(s.eval_step(to_values(s.inputs(false), inputs, input_count)), outputs, output_count);
  });
}

BpStatus bp_lazy_reset_grad(BpTrainingSession* session) {
  return guarded([&] { session_of(session).lazy_reset_grad(); });
}

BpStatus bp_optimizer_step(BpTrainingSession* session) {
  return guarded([&] { session_of(session).optimizer_step(); });
}

BpStatus bp_set_learning_rate(BpTrainingSession* session, float rate) {
  return guarded([&] { session_of(session).set_learning_rate(rate); });
}

BpStatus bp_get_learning_rate(const BpTrainingSession* session, float* out) {
  return guarded([&] { need(out, "out") = session_of(session).learning_rate(); });
}

BpStatus bp_register_linear_lr_scheduler(BpTrainingSession* session, int64_t warmup, int64_t total,
                                         float initial_rate) {
  return guarded([&] { session_of(session).register_linear_scheduler(warmup, total, initial_rate); });
}

BpStatus bp_scheduler_step(BpTrainingSession* session) {
  return guarded([&] { session_of(session).scheduler_step(); });
}

BpStatus bp_get_parameters_size(const BpTrainingSession* session, int trainable_only, int64_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).parameters_size(trainable_only != 0); });
}

BpStatus bp_copy_parameters_to_buffer(const BpTrainingSession* session, BpTensor* buffer, int trainable_only) {
  return guarded([&] {
    const Tensor from = session_of(session).contiguous_parameters(trainable_only != 0);
    Tensor& to = need(buffer, "buffer").tensor;
    if (to.dtype() != DType::float32 || to.size() != from.size()) {
      fail("buffer: got ", name_of(to.dtype()), to_string(to.dims()), ", expected ", from.size(), " float32 elements");
    }
    std::copy_n(from.as<float>(), from.size(), to.as<float>());
  });
}

BpStatus bp_copy_buffer_to_parameters(BpTrainingSession* session, const BpTensor* buffer, int trainable_only) {
  return guarded([&] { session_of(session).copy_to_parameters(need(buffer, "buffer").tensor, trainable_only != 0); });
}

BpStatus bp_export_model_for_inferencing(const BpTrainingSession* session, const char* path,
                                         const char* const* output_names, size_t output_count) {
  return guarded([&] {
    const std::vector<std::string> names = to_names(output_names, output_count, "output_names");
    session_of(session).export_model_for_inferencing(&need(path, "path"), names);
  });
}

BpStatus bp_set_seed(int64_t seed) {
  return guarded([&] { set_seed(seed); });
}
