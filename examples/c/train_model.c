/* Trains a model that computes a loss, without artifacts:
 * `train_model <model> <loss> <data> <steps> <batch> <features> [checkpoint]`. `data` holds, for each step, batch x
 * features float32 numbers followed by batch int64 labels. Prints one loss per line; with a checkpoint, goes on from it
 * if it exists, and writes it. */
#include <backpass/backpass.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(BpStatus status) {
  if (status == BP_OK) return;
  fprintf(stderr, "%s\n", bp_last_error());
  exit(1);
}

static BpCheckpoint* weights(const char* model, const char* loss, const char* checkpoint) {
  BpCheckpoint* state = NULL;
  FILE* file = checkpoint == NULL ? NULL : fopen(checkpoint, "rb");
  if (file == NULL) {
    check(bp_get_weights_of_model(model, loss, NULL, 0, &state));
  } else {
    fclose(file);
    check(bp_load_checkpoint(checkpoint, &state));
  }
  return state;
}

static BpTrainer* adamw(BpCheckpoint* state) {
  BpTrainer* trainer = NULL;
  BpWeightSettings settings;
  check(bp_get_default_settings(&settings));
  settings.weight_decay = 0.01;
  const BpTrainerOptions options = {.algorithm = BP_ADAM, .defaults = &settings, .clips_gradients = 1};
  check(bp_create_trainer(state, &options, &trainer));
  return trainer;
}

static void train(BpTrainer* trainer, size_t program, FILE* data, int64_t steps, int64_t batch, int64_t features) {
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
    check(bp_trainer_train_step(trainer, program, inputs, 2, 1e-2, &loss, 1, NULL));
    check(bp_tensor_data(loss, &loss_data));
    printf("%.9g\n", (double)*(float*)loss_data);
    bp_release_tensor(loss);
  }
  bp_release_tensor(x);
  bp_release_tensor(labels);
}

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: train_model <model> <loss> <data> <steps> <batch> <features> [checkpoint]\n");
    return 2;
  }
  const char* checkpoint = argc > 7 ? argv[7] : NULL;
  const char* outputs[1] = {argv[2]};
  size_t program = 0;
  BpCheckpoint* state = weights(argv[1], argv[2], checkpoint);
  BpTrainer* trainer = adamw(state);
  check(bp_trainer_add_model(trainer, argv[1], argv[2], outputs, 1, &program));
  FILE* data = fopen(argv[3], "rb");
  if (data == NULL) {
    perror(argv[3]);
    return 1;
  }
  train(trainer, program, data, atoll(argv[4]), atoll(argv[5]), atoll(argv[6]));
  fclose(data);
  if (checkpoint != NULL) check(bp_save_checkpoint(state, checkpoint, 1));
  bp_release_trainer(trainer);
  bp_release_checkpoint(state);
  return 0;
}
