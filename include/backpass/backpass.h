/* The C interface of Backpass: training from artifacts or from a model, and inference.
 *
 *   BpCheckpoint* state = NULL;
 *   BpTrainingSession* session = NULL;
 *   if (bp_load_checkpoint("checkpoint", &state) != BP_OK ||
 *       bp_create_training_session(state, "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", NULL,
 *                                  &session) != BP_OK) {
 *     fprintf(stderr, "%s\n", bp_last_error());
 *   }
 *
 * Every function returns a status; after anything but BP_OK, bp_last_error() says what was wrong, for the calling
 * thread, until its next call. Nothing throws. Objects are freed by their bp_release_ function, which takes NULL as
 * well; a session keeps its checkpoint alive by itself, so the order does not matter. Strings given out belong to the
 * object they were asked of and live as long as it does. */
#ifndef BACKPASS_BACKPASS_H
#define BACKPASS_BACKPASS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define BP_API __declspec(dllexport)
#else
#define BP_API __attribute__((visibility("default")))
#endif

typedef enum BpStatus {
  BP_OK = 0,
  BP_INVALID_INPUT = 1, /* the model, file or value handed in is wrong */
  BP_UNSUPPORTED = 2,   /* legal, but Backpass cannot do it */
  BP_INTERNAL_BUG = 3,  /* never the caller's fault */
  BP_CANCELLED = 4      /* its cancel flag was set, or its time was over */
} BpStatus;

BP_API const char* bp_last_error(void);
BP_API const char* bp_version(void);

/* Element types, with ONNX's numbers. */
typedef enum BpDType {
  BP_FLOAT32 = 1,
  BP_UINT8 = 2,
  BP_INT8 = 3,
  BP_UINT16 = 4,
  BP_INT16 = 5,
  BP_INT32 = 6,
  BP_INT64 = 7,
  BP_BOOL = 9,
  BP_FLOAT16 = 10,
  BP_FLOAT64 = 11,
  BP_UINT32 = 12,
  BP_UINT64 = 13,
  BP_BFLOAT16 = 16
} BpDType;

/* ---- Tensors: dense, row-major. */

typedef struct BpTensor BpTensor;

/* With `data` the tensor uses the caller's memory, which must outlive it; without, it has uninitialised memory of its
 * own. */
BP_API BpStatus bp_create_tensor(BpDType dtype, const int64_t* dims, size_t rank, void* data, BpTensor** out);
BP_API void bp_release_tensor(BpTensor* tensor);
BP_API BpStatus bp_tensor_data(BpTensor* tensor, void** out);
BP_API BpStatus bp_tensor_dtype(const BpTensor* tensor, BpDType* out);
BP_API BpStatus bp_tensor_shape(const BpTensor* tensor, const int64_t** dims, size_t* rank);
BP_API BpStatus bp_tensor_size(const BpTensor* tensor, int64_t* elements);

/* ---- Stopping a call that takes too long, from another thread or a signal handler: its status is BP_CANCELLED then,
 * and bp_last_error() names the node that it had reached. The session can be used again; parameters and optimizer are
 * as they were; gradients count as lost until a step that replaces them (bp_lazy_reset_grad) has run. */

typedef struct BpCancelFlag BpCancelFlag;

BP_API BpStatus bp_create_cancel_flag(BpCancelFlag** out);
/* Stays as it is until the next call: calls that start while it is set stop at once. Takes no lock. */
BP_API void bp_set_cancel_flag(BpCancelFlag* flag, int is_set);
BP_API void bp_release_cancel_flag(BpCancelFlag* flag);

/* ---- Options of sessions; NULL stands for the defaults. Fields that are zero are, too. */

typedef struct BpSessionOptions {
  int num_threads;             /* 0: as many as OpenMP would use */
  int binding_cache;           /* how many sets of input extents keep their plan; 0: the default */
  double time_limit;           /* seconds that one call may take; 0: no limit */
  BpCancelFlag* cancel;        /* stops calls while it is set; may be released before the session. NULL: none */
  const char* disabled_passes; /* rewriting passes that do not run: names joined by commas. NULL: none */
  double max_memory;           /* bytes of intermediate values in training, up to 1 a share of them; 0: no limit */
  double sparse_threshold;     /* share of needed rows below which training leaves out the others; 0: 0.9, -1: never */
} BpSessionOptions;

/* ---- Checkpoints. */

typedef struct BpCheckpoint BpCheckpoint;
typedef enum BpPropertyType { BP_PROPERTY_INT = 0, BP_PROPERTY_FLOAT = 1, BP_PROPERTY_STRING = 2 } BpPropertyType;

BP_API BpStatus bp_load_checkpoint(const char* path, BpCheckpoint** out);
/* A checkpoint with external data cannot be loaded so. */
BP_API BpStatus bp_load_checkpoint_from_buffer(const void* data, size_t bytes, BpCheckpoint** out);
/* Replaces the file as a whole: the previous one stays intact whatever happens before. */
BP_API BpStatus bp_save_checkpoint(const BpCheckpoint* state, const char* path, int include_optimizer_state);
BP_API void bp_release_checkpoint(BpCheckpoint* state);

/* Adds or overwrites. `value` points to an int64_t, a float, or the characters of a string. */
BP_API BpStatus bp_add_property(BpCheckpoint* state, const char* name, BpPropertyType type, const void* value);
/* `*value` points to an int64_t, a float or characters, and is valid until the next call about this state. */
BP_API BpStatus bp_get_property(BpCheckpoint* state, const char* name, BpPropertyType* type, const void** value);

BP_API BpStatus bp_get_parameter_count(const BpCheckpoint* state, size_t* out);
BP_API BpStatus bp_get_parameter_name(const BpCheckpoint* state, size_t index, const char** out);
BP_API BpStatus bp_get_parameter_type_and_shape(BpCheckpoint* state, const char* name, BpDType* dtype,
                                                const int64_t** dims, size_t* rank);
BP_API BpStatus bp_update_parameter(BpCheckpoint* state, const char* name, const BpTensor* value);
/* A tensor that shares the parameter's memory: later steps show up in it. */
BP_API BpStatus bp_get_parameter(BpCheckpoint* state, const char* name, BpTensor** out);

/* ---- Several processes that train together, by functions of the caller's network. docs/parallel.md says what they do.
 *
 * Every function works on `count` elements in place and returns 0; anything else ends the call of the session that
 * needed it. start_allreduce may return before its sum is there; wait ends all that was started. The table is copied;
 * its context must outlive the sessions that use it. */

typedef struct BpCommunicator {
  void* context; /* given to every function */
  int rank, size;
  int (*broadcast)(void* context, void* data, int64_t count, BpDType dtype, int root);
  int (*start_allreduce)(void* context, void* data, int64_t count, BpDType dtype);
  int (*wait)(void* context);
  int (*allgather)(void* context, const void* mine, int64_t count, BpDType dtype, void* all);
  /* For zero_stage 1; NULL: `all` is added up as a whole, and the part of this rank taken. */
  int (*reduce_scatter)(void* context, const void* all, void* mine, int64_t count, BpDType dtype);
} BpCommunicator;

/* NULL stands for the defaults. Fields that are zero are, too. */
typedef struct BpParallelOptions {
  int64_t bucket_bytes;   /* gradients are sent in pieces of about this size; 0: 25 MB */
  int sends_late;         /* all gradients are sent when the step is over, not as soon as they are complete */
  int has_own_statistics; /* running statistics are not averaged over processes */
  int zero_stage;         /* 1: each process keeps its share of the optimizer's state */
} BpParallelOptions;

/* ---- Training. */

typedef struct BpTrainingSession BpTrainingSession;

/* `eval` and `optimizer` may be NULL; what needs them fails then. */
BP_API BpStatus bp_create_training_session(BpCheckpoint* state, const char* training, const char* eval,
                                           const char* optimizer, const BpSessionOptions* options,
                                           BpTrainingSession** out);
BP_API BpStatus bp_create_training_session_from_buffer(BpCheckpoint* state, const void* training, size_t training_bytes,
                                                       const void* eval, size_t eval_bytes, const void* optimizer,
                                                       size_t optimizer_bytes, const BpSessionOptions* options,
                                                       BpTrainingSession** out);
BP_API void bp_release_training_session(BpTrainingSession* session);

/* Inputs and outputs the user deals with: no parameters, no gradients. */
BP_API BpStatus bp_get_training_input_count(const BpTrainingSession* session, size_t* out);
BP_API BpStatus bp_get_training_input_name(const BpTrainingSession* session, size_t index, const char** out);
BP_API BpStatus bp_get_training_output_count(const BpTrainingSession* session, size_t* out);
BP_API BpStatus bp_get_training_output_name(const BpTrainingSession* session, size_t index, const char** out);
BP_API BpStatus bp_get_eval_input_count(const BpTrainingSession* session, size_t* out);
BP_API BpStatus bp_get_eval_input_name(const BpTrainingSession* session, size_t index, const char** out);
BP_API BpStatus bp_get_eval_output_count(const BpTrainingSession* session, size_t* out);
BP_API BpStatus bp_get_eval_output_name(const BpTrainingSession* session, size_t index, const char** out);

/* Forward, backward, accumulation. An output that is NULL is allocated (and to be released by the caller); another one
 * is written to and must have the right type and shape. */
BP_API BpStatus bp_train_step(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count,
                              BpTensor** outputs, size_t output_count);
BP_API BpStatus bp_eval_step(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count,
                             BpTensor** outputs, size_t output_count);
/* bp_train_step, bp_optimizer_step and bp_lazy_reset_grad in one, to the same bits, without memory for all gradients:
 * each parameter is updated as soon as its gradient is complete. From the first update on it is not cancelled. Should
 * it fail later than that, the message says so, and the checkpoint can be neither trained nor saved any more. */
BP_API BpStatus bp_train_and_update(BpTrainingSession* session, const BpTensor* const* inputs, size_t input_count,
                                    BpTensor** outputs, size_t output_count);
/* The next training step overwrites the gradients instead of adding to them. */
BP_API BpStatus bp_lazy_reset_grad(BpTrainingSession* session);
BP_API BpStatus bp_optimizer_step(BpTrainingSession* session);
BP_API BpStatus bp_set_learning_rate(BpTrainingSession* session, float rate);
BP_API BpStatus bp_get_learning_rate(const BpTrainingSession* session, float* out);
BP_API BpStatus bp_register_linear_lr_scheduler(BpTrainingSession* session, int64_t warmup, int64_t total,
                                                float initial_rate);
BP_API BpStatus bp_scheduler_step(BpTrainingSession* session);

/* From now on gradients are averages over all processes, each of which has to call it. Parameters, optimizer state and
 * seed become those of rank 0, the seed plus the rank. */
BP_API BpStatus bp_set_communicator(BpTrainingSession* session, const BpCommunicator* communicator,
                                    const BpParallelOptions* options);
/* 0: steps keep their gradients to themselves until one is told otherwise, or bp_optimizer_step. */
BP_API BpStatus bp_set_exchanges(BpTrainingSession* session, int exchanges);
/* With zero_stage 1, before a checkpoint is saved: all processes together put the optimizer's state into theirs. */
BP_API BpStatus bp_gather_optimizer_state(BpTrainingSession* session);

/* All parameters one after the other, in the order of the training model's inputs. float32 only. */
BP_API BpStatus bp_get_parameters_size(const BpTrainingSession* session, int trainable_only, int64_t* out);
BP_API BpStatus bp_copy_parameters_to_buffer(const BpTrainingSession* session, BpTensor* buffer, int trainable_only);
BP_API BpStatus bp_copy_buffer_to_parameters(BpTrainingSession* session, const BpTensor* buffer, int trainable_only);

BP_API BpStatus bp_export_model_for_inferencing(const BpTrainingSession* session, const char* path,
                                                const char* const* output_names, size_t output_count);
BP_API BpStatus bp_set_seed(int64_t seed);

/* ---- Training without artifacts: one call per step, from a model that computes a loss.
 *
 *   bp_get_weights_of_model("model.onnx", "loss", NULL, 0, &state);
 *   bp_create_trainer(state, NULL, &trainer);
 *   bp_trainer_add_model(trainer, "model.onnx", "loss", &name, 1, &program);
 *   bp_trainer_train_step(trainer, program, inputs, 2, 1e-3, outputs, 1, NULL);
 */

typedef struct BpTrainer BpTrainer;
typedef enum BpAlgorithm { BP_ADAM = 0, BP_SGD = 1, BP_LAMB = 2 } BpAlgorithm; /* AdamW is Adam with a weight decay */

/* Settings of one weight; bp_get_default_settings fills in the usual ones. docs/optimizers.md has the formulas. */
typedef struct BpWeightSettings {
  double rate_scale;  /* times the learning rate of the step */
  double alpha, beta; /* decay of the first and of the second moment */
  double epsilon;
  double weight_decay;
  int correct_bias;            /* of moments, which start at 0 */
  int decays_after;            /* Adam: the weight decays after its step, else before */
  int decays_gradient;         /* weight_decay * weight is added to the gradient */
  double max_norm;             /* of all gradients together, where they are clipped */
  double ratio_min, ratio_max; /* LAMB */
} BpWeightSettings;

typedef struct BpNamedSettings {
  const char* weight;
  BpWeightSettings settings;
} BpNamedSettings;

/* NULL stands for the defaults: Adam, an update per step. Fields that are zero are, too. */
typedef struct BpTrainerOptions {
  BpAlgorithm algorithm;
  const BpWeightSettings* defaults; /* of weights that `by_weight` does not name. NULL: the usual ones */
  const BpNamedSettings* by_weight;
  size_t by_weight_count;
  int64_t accumulation_steps; /* steps whose gradients are averaged for an update */
  int clips_gradients;        /* by the norm of all of them */
  int skips_non_finite;       /* gradients with an infinity or NaN update nothing */
  int scales_loss;            /* gradients are those of loss * loss scale, divided by it */
  const BpSessionOptions* session;
  const BpCommunicator* communicator; /* to those that train the same model on other data. NULL: none */
  const BpParallelOptions* parallel;
} BpTrainerOptions;

typedef struct BpTrainResult {
  int updated;    /* this was the last step of an accumulation, and its gradients were used */
  int all_finite; /* gradients, where somebody looked */
} BpTrainResult;

BP_API BpStatus bp_get_default_settings(BpWeightSettings* out);
/* The weights of a model: initializers that its loss depends on, trained unless they are frozen or scalars. */
BP_API BpStatus bp_get_weights_of_model(const char* model, const char* loss, const char* const* frozen,
                                        size_t frozen_count, BpCheckpoint** out);
BP_API BpStatus bp_create_trainer(BpCheckpoint* state, const BpTrainerOptions* options, BpTrainer** out);
BP_API void bp_release_trainer(BpTrainer* trainer);

/* Each gives the number of a program, for training and for evaluation. Outputs are what a step returns, in order. */
BP_API BpStatus bp_trainer_add_model(BpTrainer* trainer, const char* model, const char* loss,
                                     const char* const* outputs, size_t output_count, size_t* program);
BP_API BpStatus bp_trainer_add_eval_model(BpTrainer* trainer, const char* model, const char* const* outputs,
                                          size_t output_count, size_t* program);
/* The inputs that a program needs, in the order of the model. */
BP_API BpStatus bp_trainer_get_input_count(const BpTrainer* trainer, size_t program, size_t* out);
BP_API BpStatus bp_trainer_get_input_name(const BpTrainer* trainer, size_t program, size_t index, const char** out);
BP_API BpStatus bp_trainer_get_eval_input_count(const BpTrainer* trainer, size_t program, size_t* out);
BP_API BpStatus bp_trainer_get_eval_input_name(const BpTrainer* trainer, size_t program, size_t index,
                                               const char** out);

/* Forward, backward, accumulation, and an update where it is due. Outputs have to be NULL: they become new tensors, to
 * be released by the caller. `result` may be NULL. */
BP_API BpStatus bp_trainer_train_step(BpTrainer* trainer, size_t program, const BpTensor* const* inputs,
                                      size_t input_count, double rate, BpTensor** outputs, size_t output_count,
                                      BpTrainResult* result);
BP_API BpStatus bp_trainer_eval_step(BpTrainer* trainer, size_t program, const BpTensor* const* inputs,
                                     size_t input_count, BpTensor** outputs, size_t output_count);
/* Begins an accumulation anew. */
BP_API BpStatus bp_trainer_drop_gradients(BpTrainer* trainer);
/* As bp_gather_optimizer_state. */
BP_API BpStatus bp_trainer_gather_optimizer_state(BpTrainer* trainer);
BP_API BpStatus bp_trainer_get_steps(const BpTrainer* trainer, int64_t* out);
BP_API BpStatus bp_trainer_set_steps(BpTrainer* trainer, int64_t steps);
BP_API BpStatus bp_trainer_get_updates(const BpTrainer* trainer, int64_t* out);
BP_API BpStatus bp_trainer_set_updates(BpTrainer* trainer, int64_t updates);
BP_API BpStatus bp_trainer_get_loss_scale(const BpTrainer* trainer, double* out);
BP_API BpStatus bp_trainer_set_loss_scale(BpTrainer* trainer, double scale);
/* Of the gradients of the last update, before clipping; NaN when it was not needed. */
BP_API BpStatus bp_trainer_get_last_norm(const BpTrainer* trainer, double* out);

/* ---- Inference. */

typedef struct BpSession BpSession;

BP_API BpStatus bp_create_session(const char* model, const BpSessionOptions* options, BpSession** out);
BP_API void bp_release_session(BpSession* session);
BP_API BpStatus bp_get_input_count(const BpSession* session, size_t* out);
BP_API BpStatus bp_get_input_name(const BpSession* session, size_t index, const char** out);
BP_API BpStatus bp_get_output_count(const BpSession* session, size_t* out);
BP_API BpStatus bp_get_output_name(const BpSession* session, size_t index, const char** out);
/* Inputs in order; outputs as in bp_train_step. */
BP_API BpStatus bp_run(const BpSession* session, const BpTensor* const* inputs, size_t input_count, BpTensor** outputs,
                       size_t output_count);

#ifdef __cplusplus
}
#endif

#endif /* BACKPASS_BACKPASS_H */
