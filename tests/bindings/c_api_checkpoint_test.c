/* SPDX-License-Identifier: Apache-2.0
 * c_api_checkpoint_test.c: in C, a checkpoint saved by one engine and continued by another with
 * equal bits, also one saved beside training, weights of another program, and an engine that
 * sleeps. argv[1]: a folder on a drive. */
#include "c_host.h"

#include <sys/wait.h>
#include <unistd.h>

static headrace_engine* frozen_engine(const char* folder) {
  char json[8192];
  headrace_engine* engine;
  offloaded_settings(json, sizeof json, folder);
  engine = new_engine(json);
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  return engine;
}

static void train(headrace_engine* engine, uint64_t first, uint64_t end) {
  float gradient[kElements];
  uint64_t step;
  int i;
  for (step = first; step < end; ++step) {
    for (i = 0; i < kElements; ++i)
      gradient[i] = (float)((step * 7919u + (uint64_t)i) % 1000u) - 500;
    EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
    EXPECT_OK(headrace_engine_step(engine, NULL, NULL, &error));
  }
}

static void hashes_of(headrace_engine* engine, char out[2 * HEADRACE_HASH_CAPACITY]) {
  EXPECT_OK(headrace_engine_hash_parameters(engine, out, &error));
  EXPECT_OK(headrace_engine_hash_optimizer_state(engine, out + HEADRACE_HASH_CAPACITY, &error));
}

static void remove_folder(const char* path) {
  char command[4096];
  snprintf(command, sizeof command, "rm -rf '%s'", path);
  EXPECT(system(command) == 0);
}

// [checkpoint]
/* Saves the engine with the number of the step, and names the folder in the file `latest`. */
static void save(headrace_engine* engine, const char* directory, uint64_t step) {
  headrace_save_options options;
  headrace_save_options_init(&options);
  options.latest = 1;
  options.trainer_state = &step;
  options.trainer_state_bytes = sizeof step;
  EXPECT_OK(headrace_engine_save_checkpoint(engine, directory, &options, &error));
}

/* Loads the newest checkpoint in `directory`. Returns the number of the step. */
static uint64_t load(headrace_engine* engine, const char* directory) {
  uint64_t step = 0;
  size_t size_bytes;
  EXPECT_OK(headrace_engine_load_checkpoint(engine, directory, &error));
  EXPECT_OK(headrace_engine_loaded_trainer_state(engine, &step, sizeof step, &size_bytes, &error));
  return step;
}
// [/checkpoint]

static void continues_with_equal_bits(const char* folder, const char* place) {
  char path[4096], undisturbed[2 * HEADRACE_HASH_CAPACITY], loaded[2 * HEADRACE_HASH_CAPACITY];
  headrace_engine* engine = frozen_engine(folder);
  uint64_t step;
  memset(undisturbed, 0, sizeof undisturbed);
  memset(loaded, 0, sizeof loaded);
  snprintf(path, sizeof path, "%s/step-3", place);
  EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
  train(engine, 0, 3);
  save(engine, path, 3);
  train(engine, 3, 6);
  hashes_of(engine, undisturbed);
  EXPECT_OK(headrace_engine_destroy(engine, &error));

  engine = frozen_engine(folder);
  step = load(engine, place);
  EXPECT(step == 3);
  train(engine, step, 6);
  hashes_of(engine, loaded);
  EXPECT(memcmp(undisturbed, loaded, sizeof loaded) == 0);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

static headrace_code name_of_tensor(void* context, const char* full_name, char* buffer,
                                    size_t capacity) {
  snprintf(buffer, capacity, "%s%s", (const char*)context, full_name + 1); /* for "g.weight" */
  return HEADRACE_OK;
}
static headrace_code fail_to_name(void* context, const char* full_name, char* buffer,
                                  size_t capacity) {
  (void)context, (void)full_name, (void)buffer, (void)capacity;
  return HEADRACE_UNSUPPORTED;
}

/* The weights of a checkpoint as those of another program's model. */
static void weights_are_loaded(const char* folder, const char* place) {
  char path[4096], other[] = "x", same[] = "g";
  headrace_weight_options options;
  headrace_engine* engine = frozen_engine(folder);
  uint64_t steps = 99;
  snprintf(path, sizeof path, "%s/step-3/model.safetensors", place);
  EXPECT_OK(headrace_engine_load_weights(engine, path, NULL, &error));
  EXPECT_OK(headrace_engine_step_count(engine, 0, &steps, &error));
  EXPECT(steps == 0);
  headrace_weight_options_init(&options);
  options.tensor_name = name_of_tensor;
  options.context = same;
  EXPECT_OK(headrace_engine_load_weights(engine, path, &options, &error));
  options.context = other;
  EXPECT_CODE(headrace_engine_load_weights(engine, path, &options, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("no tensor 'x.weight'");
  options.tensor_name = fail_to_name;
  EXPECT_CODE(headrace_engine_load_weights(engine, path, &options, &error), HEADRACE_UNSUPPORTED);
  options.allow_unused = 2;
  EXPECT_CODE(headrace_engine_load_weights(engine, path, &options, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.allow_unused is 2");
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

static void sleeps_and_wakes(const char* folder, const char* place) {
  char before[2 * HEADRACE_HASH_CAPACITY], after[2 * HEADRACE_HASH_CAPACITY];
  headrace_engine* engine = new_engine(NULL);
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
  memset(before, 0, sizeof before);
  memset(after, 0, sizeof after);
  hashes_of(engine, before);
  EXPECT_CODE(headrace_engine_wake(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_sleep(engine, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("Name a directory");
  EXPECT_OK(headrace_engine_sleep(engine, folder, &error));
  EXPECT_CODE(headrace_engine_step(engine, NULL, NULL, &error), HEADRACE_WRONG_STATE);
  EXPECT_WORDS("the engine sleeps");
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, place, NULL, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_wake(engine, &error));
  hashes_of(engine, after);
  EXPECT(memcmp(before, after, sizeof before) == 0);
  EXPECT_OK(headrace_engine_sleep(engine, folder, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

static headrace_engine* durable_engine(const char* folder, const char* store) {
  char json[8192];
  headrace_engine* engine;
  snprintf(json, sizeof json,
           "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
           "\"%s\"}}, \"headrace\": {\"durable\": \"step\", \"store\": \"%s\", "
           "\"background_save_bytes_per_second\": \"1GiB\"}}",
           folder, store);
  engine = new_engine(json);
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
  return engine;
}

static void child_is_refused(headrace_background_save* save) {
  int status = 1;
  const pid_t child = fork();
  if (child == 0) _exit(headrace_background_save_wait(save, NULL) == HEADRACE_WRONG_STATE ? 0 : 1);
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

/* Three steps, a save beside the next three, and another engine that goes on after the third. */
static void saves_beside_training(const char* folder, const char* place) {
  char path[4096], store[64], hashes[2][2 * HEADRACE_HASH_CAPACITY];
  headrace_background_save* save = NULL;
  headrace_engine* engine;
  int32_t done = 7;
  memset(hashes, 0, sizeof hashes);
  snprintf(path, sizeof path, "%s/beside", place);
  snprintf(store, sizeof store, "c-beside-%d", (int)getpid());
  engine = durable_engine(folder, store);
  train(engine, 0, 3);
  EXPECT_OK(headrace_engine_save_checkpoint_in_background(engine, path, NULL, &save, &error));
  train(engine, 3, 6);
  hashes_of(engine, hashes[0]);
  child_is_refused(save);
  EXPECT_OK(headrace_background_save_wait(save, &error));
  EXPECT_OK(headrace_background_save_done(save, &done, &error));
  EXPECT(done == 1);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  EXPECT_OK(headrace_background_save_wait(save, &error)); /* it outlives the engine */
  EXPECT_OK(headrace_background_save_destroy(save, &error));
  EXPECT_CODE(headrace_background_save_done(save, &done, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("background save: no live handle");
  snprintf(store, sizeof store, "%s/headrace-%d/store-c-beside-%d", folder, (int)getuid(),
           (int)getpid());
  remove_folder(store);

  engine = frozen_engine(folder);
  EXPECT_OK(headrace_engine_load_checkpoint(engine, path, &error));
  train(engine, 3, 6);
  hashes_of(engine, hashes[1]);
  EXPECT(memcmp(hashes[0], hashes[1], sizeof hashes[0]) == 0);
  snprintf(path, sizeof path, "%s/refused", place);
  save = NULL;
  EXPECT_CODE(headrace_engine_save_checkpoint_in_background(engine, path, NULL, &save, &error),
              HEADRACE_UNSUPPORTED);
  EXPECT_WORDS("set headrace.durable");
  EXPECT(save == NULL);
  EXPECT_CODE(headrace_engine_save_checkpoint_in_background(engine, path, NULL, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

static void calls_are_refused(const char* folder, const char* place) {
  char path[4096];
  uint64_t bytes = 0;
  size_t size_bytes = 99;
  headrace_save_options options;
  headrace_engine* engine = frozen_engine(folder);
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, "nowhere", NULL, &error),
              HEADRACE_WRONG_STATE); /* nothing is loaded */
  EXPECT_OK(headrace_engine_loaded_trainer_state(engine, NULL, 0, &size_bytes, &error));
  EXPECT(size_bytes == 0);
  load(engine, place);
  EXPECT_CODE(headrace_engine_loaded_trainer_state(engine, &bytes, 4, &size_bytes, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT(size_bytes == sizeof bytes && bytes == 3);
  snprintf(path, sizeof path, "%s/step-3", place);
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, path, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("exists");
  snprintf(path, sizeof path, "%s/absent", place);
  EXPECT_CODE(headrace_engine_load_checkpoint(engine, path, &error), HEADRACE_NOT_FOUND);
  EXPECT_OK(headrace_engine_loaded_trainer_state(engine, NULL, 0, &size_bytes, &error));
  EXPECT(size_bytes == 0); /* the last load failed */
  headrace_save_options_init(&options);
  options.latest = 7;
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, path, &options, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.latest is 7");
  headrace_save_options_init(&options);
  options.trainer_state_bytes = 1;
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, path, &options, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.trainer_state is NULL");
  options.struct_size = 4;
  EXPECT_CODE(headrace_engine_save_checkpoint(engine, path, &options, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("struct_size");
  EXPECT_OK(headrace_engine_save_checkpoint(engine, path, NULL, &error));
  EXPECT_OK(headrace_engine_load_checkpoint(engine, path, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  char place[2048], command[4096];
  headrace_error_init(&error, message, sizeof message);
  snprintf(place, sizeof place, "%s/checkpoints-%d", folder, (int)getpid());
  snprintf(command, sizeof command, "mkdir -p '%s'", place);
  EXPECT(system(command) == 0);
  continues_with_equal_bits(folder, place);
  weights_are_loaded(folder, place);
  sleeps_and_wakes(folder, place);
  saves_beside_training(folder, place);
  calls_are_refused(folder, place);
  remove_folder(place);
  if (failures > 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures > 0;
}
