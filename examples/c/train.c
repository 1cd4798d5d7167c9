/* Trains from artifacts and exports the result: `train <artifact folder> <data> <steps> <batch> <features> [output]`.
 * `data` holds, for each step, batch x features float32 numbers followed by batch int64 labels. Prints one loss per
 * line; with an output name, writes the trained model to inference.onnx in the artifact folder. */
#include <backpass/backpass.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(BpStatus status) {
  if (status == BP_OK) return;
  fprintf(stderr, "%s\n", bp_last_error());
  exit(1);
}

static const char* join(const char* folder, const char* file, char* path, size_t size) {
  if ((size_t)snprintf(path, size, "%s/%s", folder, file) >= size) {
    fprintf(stderr, "path too long\n");
    exit(2);
  }
  return path;
}

static void train(BpTrainingSession* session, FILE* data, int64_t steps, int64_t batch, int64_t features) {
  const int64_t x_dims[2] = {batch, features};
  BpTensor *x = NULL, *labels = NULL;
  void *x_data = NULL, *label_data = NULL;
  check(bp_create_tensor(BP_FLOAT32, x_dims, 2, NULL, &x));
  check(bp_create_tensor(BP_INT64, &batch, 1, NULL, &labels));
  check(bp_tensor_data(x, &x_data));
  check(bp_tensor_data(labels, &label_data));
  for (int64_t step = 0; step < steps; ++step) {
    size_t read = fread(x_data, sizeof(float), (size_t)(batch * features), data);
    read += fread(label_data, sizeof(int64_t), (size_t)batch, data);
    if (read != (size_t)(batch * features + batch)) {
      fprintf(stderr, "data ends in step %" PRId64 "\n", step);
      exit(1);
    }
    const BpTensor* inputs[2] = {x, labels};
    BpTensor* loss = NULL;
    void* loss_data = NULL;
    check(bp_train_and_update(session, inputs, 2, &loss, 1));
    check(bp_tensor_data(loss, &loss_data));
    printf("%.9g\n", (double)*(float*)loss_data);
    bp_release_tensor(loss);
  }
  bp_release_tensor(x);
  bp_release_tensor(labels);
}

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: train <artifact folder> <data> <steps> <batch> <features> [output]\n");
    return 2;
  }
  char checkpoint[4096], training[4096], eval[4096], optimizer[4096], exported[4096];
  BpCheckpoint* state = NULL;
  BpTrainingSession* session = NULL;
  check(bp_load_checkpoint(join(argv[1], "checkpoint", checkpoint, sizeof checkpoint), &state));
  check(bp_create_training_session(state, join(argv[1], "training_model.onnx", training, sizeof training),
                                   join(argv[1], "eval_model.onnx", eval, sizeof eval),
                                   join(argv[1], "optimizer_model.onnx", optimizer, sizeof optimizer), NULL, &session));
  FILE* data = fopen(argv[2], "rb");
  if (data == NULL) {
    perror(argv[2]);
    return 1;
  }
  train(session, data, atoll(argv[3]), atoll(argv[4]), atoll(argv[5]));
  fclose(data);
  if (argc > 6) {
    const char* names[1] = {argv[6]};
    check(
        bp_export_model_for_inferencing(session, join(argv[1], "inference.onnx", exported, sizeof exported), names, 1));
  }
  check(bp_save_checkpoint(state, checkpoint, 1));
  bp_release_training_session(session);
  bp_release_checkpoint(state);
  return 0;
}
