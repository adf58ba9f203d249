/* SPDX-License-Identifier: Apache-2.0
 * c_api_durable_test.c: a durable engine in C: a store is made, a run is killed, and the next one
 * goes on where it was, to the same bits. argv[1]: a folder on a drive. */
#include "c_host.h"

#include <sys/wait.h>
#include <unistd.h>

enum { kSteps = 6 };
struct position { /* what this trainer needs to go on, beside what the engine has */
  uint64_t batch;
  uint64_t random;
};

static headrace_engine* durable_engine(const char* folder, const char* store, const char* more) {
  char json[8192];
  snprintf(json, sizeof json,
           "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
           "\"%s\"}}, \"headrace\": {\"durable\": \"step\", \"store\": \"%s\", "
           "\"trainer_state_bytes\": 64%s}}",
           folder, store, more);
  return new_engine(json);
}
static void name_store(char* text, size_t capacity, const char* what) {
  snprintf(text, capacity, "c-%s-%d", what, (int)getpid());
}
static void remove_store(const char* folder, const char* store) {
  char command[4096];
  snprintf(command, sizeof command, "rm -rf '%s/headrace-%d/store-%s'", folder, (int)getuid(),
           store);
  EXPECT(system(command) == 0);
}

static void add_up_gradients(headrace_engine* engine, uint64_t seed) {
  float gradient[kElements];
  int i;
  for (i = 0; i < kElements; ++i) gradient[i] = (float)((seed * 7919u + (uint64_t)i) % 1000u) - 500;
  EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
}

// [resume]
/* Makes the values or takes them from the store. Returns the number of steps that are made. */
static uint64_t begin_or_go_on(headrace_engine* engine, struct position* position) {
  headrace_resumed resumed;
  size_t size_bytes;
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  headrace_resumed_init(&resumed);
  EXPECT_OK(headrace_engine_resumed(engine, &resumed, &error));
  if (!resumed.resumed) {
    EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
    return 0;
  }
  EXPECT_OK(headrace_engine_resumed_trainer_state(engine, position, sizeof *position, &size_bytes,
                                                  &error));
  return resumed.step;
}

static void train(headrace_engine* engine, uint64_t to_step) {
  struct position position = {0, 1};
  uint64_t step = begin_or_go_on(engine, &position);
  for (; step < to_step; ++step) {
    position.random = position.random * 6364136223846793005u + 1;
    add_up_gradients(engine, position.batch++ ^ position.random);
    EXPECT_OK(headrace_engine_set_trainer_state(engine, &position, sizeof position, &error));
    EXPECT_OK(headrace_engine_step(engine, NULL, NULL, &error));
  }
}
// [/resume]

static void hashes_of(headrace_engine* engine, char out[2 * HEADRACE_HASH_CAPACITY]) {
  EXPECT_OK(headrace_engine_hash_parameters(engine, out, &error));
  EXPECT_OK(headrace_engine_hash_optimizer_state(engine, out + HEADRACE_HASH_CAPACITY, &error));
}

static headrace_resumed resumed_of(headrace_engine* engine) {
  headrace_resumed resumed;
  headrace_resumed_init(&resumed);
  EXPECT_OK(headrace_engine_resumed(engine, &resumed, &error));
  return resumed;
}

/* Dies after a step, without a word to the engine. */
static void train_and_die(const char* folder, const char* store, uint64_t to_step) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    headrace_engine* engine = durable_engine(folder, store, "");
    add_vector(engine, "g");
    train(engine, to_step);
    _exit(failures > 0);
  }
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_killed_run_goes_on(const char* folder) {
  char store[64], undisturbed[2 * HEADRACE_HASH_CAPACITY], killed[2 * HEADRACE_HASH_CAPACITY];
  headrace_engine* engine = new_engine(NULL);
  headrace_resumed resumed;
  struct position position;
  uint64_t durable = 99;
  size_t size_bytes;
  memset(undisturbed, 0, sizeof undisturbed);
  memset(killed, 0, sizeof killed);
  add_vector(engine, "g");
  train(engine, kSteps); /* nothing is durable, and nothing is refused */
  EXPECT(resumed_of(engine).resumed == 0);
  EXPECT_OK(headrace_engine_durable_step(engine, &durable, &error));
  EXPECT(durable == 0);
  hashes_of(engine, undisturbed);
  EXPECT_OK(headrace_engine_destroy(engine, &error));

  name_store(store, sizeof store, "killed");
  train_and_die(folder, store, 3);
  engine = durable_engine(folder, store, ", \"resume\": \"require\"");
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  resumed = resumed_of(engine);
  EXPECT(resumed.resumed == 1 && resumed.step >= 2 && resumed.step <= 3);
  EXPECT(resumed.skipped == 0 && resumed.trainer_state_bytes == sizeof position);
  EXPECT_OK(headrace_engine_resumed_trainer_state(engine, NULL, 0, &size_bytes, &error));
  EXPECT(size_bytes == sizeof position);
  EXPECT_CODE(headrace_engine_resumed_trainer_state(engine, &position, 8, &size_bytes, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT(size_bytes == sizeof position && position.batch == resumed.step);
  EXPECT_OK(headrace_engine_destroy(engine, &error));

  engine = durable_engine(folder, store, "");
  add_vector(engine, "g");
  train(engine, kSteps);
  EXPECT_OK(headrace_engine_durable_step(engine, &durable, &error));
  EXPECT(durable >= kSteps - 1);
  EXPECT_OK(headrace_engine_commit(engine, &error));
  EXPECT_OK(headrace_engine_durable_step(engine, &durable, &error));
  EXPECT(durable == kSteps);
  hashes_of(engine, killed);
  EXPECT(memcmp(undisturbed, killed, sizeof killed) == 0);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  remove_store(folder, store);
}

static void durable_calls_are_refused_out_of_place(const char* folder) {
  char store[64];
  unsigned char state[65] = {0};
  uint64_t step = 99;
  headrace_resumed resumed;
  headrace_engine* engine = new_engine(NULL);
  add_vector(engine, "g");
  headrace_resumed_init(&resumed);
  EXPECT_CODE(headrace_engine_resumed(engine, &resumed, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_durable_step(engine, &step, &error), HEADRACE_WRONG_STATE);
  EXPECT(step == 99);
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_CODE(headrace_engine_commit(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_WORDS("headrace.durable");
  resumed.struct_size = 8;
  EXPECT_CODE(headrace_engine_resumed(engine, &resumed, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("struct_size");
  EXPECT_OK(headrace_engine_destroy(engine, &error));

  name_store(store, sizeof store, "refused");
  engine = durable_engine(folder, store, "");
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_CODE(headrace_engine_commit(engine, &error), HEADRACE_WRONG_STATE); /* nothing loaded */
  EXPECT_CODE(headrace_engine_set_trainer_state(engine, state, sizeof state, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("headrace.trainer_state_bytes");
  EXPECT_OK(headrace_engine_set_trainer_state(engine, NULL, 0, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  engine = durable_engine(folder, store, ", \"resume\": \"require\"");
  add_vector(engine, "g");
  EXPECT_CODE(headrace_engine_freeze(engine, &error), HEADRACE_NOT_FOUND);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  remove_store(folder, store);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  headrace_error_init(&error, message, sizeof message);
  a_killed_run_goes_on(folder);
  durable_calls_are_refused_out_of_place(folder);
  if (failures > 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures > 0;
}
