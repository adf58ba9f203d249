/* SPDX-License-Identifier: Apache-2.0
 * c_api_optimizer_test.c: the optimizer alone, in C: the engine's bits, one norm over several
 * calls, and what is refused. */
#include "c_host.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static headrace_optimizer* new_optimizer(const headrace_optimizer_options* options) {
  headrace_optimizer* optimizer = NULL;
  EXPECT_OK(headrace_optimizer_create(options, &optimizer, &error));
  return optimizer;
}

/* The gradient of step t. */
static void fill_gradient(float* gradient, uint64_t t) {
  int i;
  for (i = 0; i < kElements; ++i) gradient[i] = (float)((t * 7919u + (uint64_t)i) % 1000u) - 500;
}

// [optimizer]
/* A vector of f32 and its state, which one allocation holds. */
struct vector {
  float weight[kElements];
  float gradient[kElements];
  headrace_parameter_state state;
  headrace_parameter_update update;
};
static void allocate(struct vector* vector, headrace_optimizer* optimizer) {
  headrace_state_bytes bytes;
  int k;
  headrace_state_bytes_init(&bytes);
  EXPECT_OK(headrace_optimizer_state_bytes(optimizer, HEADRACE_F32, HEADRACE_MASTER_F32, kElements,
                                           &bytes, &error));
  headrace_parameter_state_init(&vector->state);
  vector->state.name = "weight";
  vector->state.dtype = HEADRACE_F32;
  vector->state.elements = kElements;
  vector->state.weight = vector->weight;
  for (k = 0; k < 2; ++k) {
    vector->state.moment[k] = bytes.moment[k] ? malloc(bytes.moment[k]) : NULL;
    vector->state.moment_scale[k] = bytes.moment_scale[k] ? malloc(bytes.moment_scale[k]) : NULL;
  }
  headrace_parameter_update_init(&vector->update);
  vector->update.gradient_dtype = HEADRACE_F32;
  vector->update.gradient = vector->gradient;
  EXPECT_OK(headrace_optimizer_initialize(optimizer, &vector->state, 1, &error));
}
/* Update number t, from 1. */
static headrace_update_result update(struct vector* vector, headrace_optimizer* optimizer,
                                     uint64_t t, const headrace_step_options* options) {
  headrace_update_result result;
  headrace_update_result_init(&result);
  vector->update.t = t;
  EXPECT_OK(headrace_optimizer_step(optimizer, &vector->state, &vector->update, 1, options, NULL,
                                    &result, &error));
  return result;
}
// [/optimizer]

static void free_state(struct vector* vector) {
  int k;
  for (k = 0; k < 2; ++k) {
    free(vector->state.moment[k]);
    free(vector->state.moment_scale[k]);
  }
}

static headrace_code keep(void* context, uint64_t first, const void* values, size_t size_bytes) {
  memcpy((char*)context + first * sizeof(float), values, size_bytes);
  return HEADRACE_OK;
}

static void gives_the_engines_bits(const char* rule, headrace_rule number) {
  char json[256];
  float engines[kElements];
  struct vector vector;
  headrace_optimizer_options options;
  headrace_step_options step;
  headrace_optimizer* optimizer;
  headrace_engine* engine;
  uint64_t t;
  snprintf(json, sizeof json, "{\"headrace\": {\"optimizer\": \"%s\"}}", rule);
  engine = new_engine(json);
  add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
  headrace_optimizer_options_init(&options);
  options.rule = number;
  optimizer = new_optimizer(&options);
  fill_ramp(NULL, 0, vector.weight, sizeof vector.weight);
  allocate(&vector, optimizer);
  headrace_step_options_init(&step);
  step.learning_rate = 0.01f;
  step.max_norm = 1.0f;
  for (t = 1; t <= 3; ++t) {
    headrace_step_result result;
    headrace_update_result alone;
    headrace_step_result_init(&result);
    fill_gradient(vector.gradient, t);
    EXPECT_OK(headrace_engine_add_gradient(engine, 0, vector.gradient, HEADRACE_F32, 0, &error));
    EXPECT_OK(headrace_engine_step(engine, &step, &result, &error));
    alone = update(&vector, optimizer, t, &step);
    EXPECT(alone.skipped == 0 && alone.measured == 1 && alone.clip_factor < 1);
    EXPECT(alone.gradient_norm == result.gradient_norm);
    EXPECT(alone.clip_factor == result.clip_factor);
  }
  EXPECT_OK(headrace_engine_store(engine, 0, HEADRACE_WEIGHT, keep, engines, &error));
  EXPECT(memcmp(engines, vector.weight, sizeof engines) == 0);
  free_state(&vector);
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* Two vectors in one call, or in two with the norm of both. */
static void shares_a_norm_over_calls(void) {
  struct vector pair[2], alone[2];
  headrace_parameter_state states[2];
  headrace_parameter_update updates[2];
  headrace_gradient_statistics all, one;
  headrace_step_options step;
  headrace_optimizer* optimizer = new_optimizer(NULL);
  int i;
  headrace_step_options_init(&step);
  step.max_norm = 0.5f;
  for (i = 0; i < 2; ++i) {
    fill_ramp(NULL, (headrace_parameter)i, pair[i].weight, sizeof pair[i].weight);
    allocate(&pair[i], optimizer);
    fill_gradient(pair[i].gradient, (uint64_t)i + 1);
    pair[i].update.t = 1;
    memcpy(alone[i].weight, pair[i].weight, sizeof alone[i].weight);
    allocate(&alone[i], optimizer);
    fill_gradient(alone[i].gradient, (uint64_t)i + 1);
    alone[i].update.t = 1;
    states[i] = pair[i].state;
    updates[i] = pair[i].update;
  }
  EXPECT_OK(headrace_optimizer_step(optimizer, states, updates, 2, &step, NULL, NULL, &error));
  headrace_gradient_statistics_init(&all);
  for (i = 0; i < 2; ++i) {
    headrace_gradient_statistics_init(&one);
    EXPECT_OK(headrace_optimizer_gradient_statistics(optimizer, &alone[i].state, &alone[i].update,
                                                     1, &one, &error));
    EXPECT(one.sum_squares > 0 && one.non_finite == 0 && one.first_non_finite == UINT64_MAX);
    all.sum_squares += one.sum_squares;
  }
  for (i = 0; i < 2; ++i) {
    EXPECT_OK(headrace_optimizer_step(optimizer, &alone[i].state, &alone[i].update, 1, &step, &all,
                                      NULL, &error));
    EXPECT(memcmp(alone[i].weight, pair[i].weight, sizeof alone[i].weight) == 0);
    free_state(&alone[i]);
    free_state(&pair[i]);
  }
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
}

static void counts_the_bytes_of_each_layout(void) {
  headrace_state_bytes bytes;
  headrace_optimizer_options options;
  headrace_optimizer* optimizer;
  headrace_optimizer_options_init(&options);
  options.moments = HEADRACE_MOMENTS_8BIT;
  optimizer = new_optimizer(&options);
  headrace_state_bytes_init(&bytes);
  EXPECT_OK(headrace_optimizer_state_bytes(optimizer, HEADRACE_BF16, HEADRACE_MASTER_SPLIT, 1024,
                                           &bytes, &error));
  EXPECT(bytes.master == 2048 && bytes.moment[0] == 1024 && bytes.moment_scale[1] == 4);
  EXPECT_OK(headrace_optimizer_state_bytes(optimizer, HEADRACE_BF16, HEADRACE_MASTER_F32, 1024,
                                           &bytes, &error));
  EXPECT(bytes.master == 4096);
  EXPECT_CODE(headrace_optimizer_state_bytes(optimizer, HEADRACE_BF16, 7, 1024, &bytes, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("layout is 7");
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
}

static void says_which_gradient_is_not_finite(void) {
  struct vector vector;
  float before[kElements];
  headrace_optimizer_options options;
  headrace_update_result result;
  headrace_optimizer* optimizer = new_optimizer(NULL);
  fill_ramp(NULL, 0, vector.weight, sizeof vector.weight);
  memcpy(before, vector.weight, sizeof before);
  allocate(&vector, optimizer);
  fill_gradient(vector.gradient, 1);
  vector.gradient[17] = NAN;
  vector.update.t = 1;
  EXPECT_CODE(headrace_optimizer_step(optimizer, &vector.state, &vector.update, 1, NULL, NULL, NULL,
                                      &error),
              HEADRACE_NOT_FINITE);
  EXPECT_WORDS("weight");
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
  headrace_optimizer_options_init(&options);
  options.skip_non_finite = 1;
  optimizer = new_optimizer(&options);
  result = update(&vector, optimizer, 1, NULL);
  EXPECT(result.skipped == 1 && result.non_finite_gradients == 1 && result.clip_factor == 0);
  EXPECT(memcmp(before, vector.weight, sizeof before) == 0);
  free_state(&vector);
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
}

static void refuses_misuse(void) {
  struct vector vector;
  headrace_parameter_state states[2];
  headrace_parameter_update updates[2];
  headrace_optimizer_options options;
  headrace_update_result result;
  headrace_optimizer* optimizer = new_optimizer(NULL);
  headrace_optimizer* other = NULL;
  fill_ramp(NULL, 0, vector.weight, sizeof vector.weight);
  allocate(&vector, optimizer);
  fill_gradient(vector.gradient, 1);

  headrace_optimizer_options_init(&options);
  options.rule = 6;
  EXPECT_CODE(headrace_optimizer_create(&options, &other, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.rule is 6");
  EXPECT(other == NULL);
  options.rule = HEADRACE_ADAM;
  options.moments = -1;
  EXPECT_CODE(headrace_optimizer_create(&options, &other, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.moments is -1");
  EXPECT_CODE(headrace_optimizer_create(NULL, NULL, &error), HEADRACE_INVALID_ARGUMENT);

  EXPECT_CODE(headrace_optimizer_step(optimizer, &vector.state, &vector.update, 1, NULL, NULL, NULL,
                                      &error),
              HEADRACE_INVALID_ARGUMENT); /* t is 0 */
  states[0] = states[1] = vector.state;
  updates[0] = updates[1] = vector.update;
  updates[0].t = updates[1].t = 1;
  EXPECT_CODE(headrace_optimizer_step(optimizer, states, updates, 2, NULL, NULL, NULL, &error),
              HEADRACE_INVALID_ARGUMENT); /* the same arrays twice */
  states[1].struct_size = 0;
  EXPECT_CODE(headrace_optimizer_initialize(optimizer, states, 2, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("states: entry 1 has struct_size 0");
  updates[0].gradient = NULL;
  EXPECT_CODE(headrace_optimizer_step(optimizer, states, updates, 1, NULL, NULL, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("gradient");
  states[0].moment[1] = NULL;
  EXPECT_CODE(headrace_optimizer_initialize(optimizer, states, 1, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("weight");
  EXPECT_CODE(headrace_optimizer_initialize(optimizer, NULL, 1, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_optimizer_initialize(optimizer, NULL, 0, &error));
  memset(&result, 0, sizeof result);
  EXPECT_CODE(headrace_optimizer_step(optimizer, &vector.state, &vector.update, 1, NULL, NULL,
                                      &result, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("out_result.struct_size is 0");

  EXPECT_OK(headrace_optimizer_destroy(NULL, &error));
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
  EXPECT_CODE(headrace_optimizer_destroy(optimizer, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_freeze((headrace_engine*)optimizer, &error),
              HEADRACE_INVALID_ARGUMENT);
  free_state(&vector);
}

/* A child has the handle, and none of the threads. */
static void belongs_to_its_process(void) {
  struct vector vector;
  int status = 1;
  headrace_optimizer_options options;
  headrace_optimizer* optimizer;
  pid_t child;
  headrace_optimizer_options_init(&options);
  options.threads = 2;
  optimizer = new_optimizer(&options);
  fill_ramp(NULL, 0, vector.weight, sizeof vector.weight);
  allocate(&vector, optimizer);
  fill_gradient(vector.gradient, 1);
  vector.update.t = 1;
  child = fork();
  if (child == 0) {
    EXPECT_CODE(headrace_optimizer_step(optimizer, &vector.state, &vector.update, 1, NULL, NULL,
                                        NULL, &error),
                HEADRACE_WRONG_STATE);
    EXPECT_CODE(headrace_optimizer_destroy(optimizer, &error), HEADRACE_WRONG_STATE);
    EXPECT_WORDS("forked child");
#ifndef __SANITIZE_THREAD__ /* it starts no threads after a fork */
    EXPECT_OK(headrace_optimizer_destroy(new_optimizer(NULL), &error));
#endif
    _exit(failures == 0 ? 0 : 1);
  }
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  update(&vector, optimizer, 1, NULL);
  free_state(&vector);
  EXPECT_OK(headrace_optimizer_destroy(optimizer, &error));
}

int main(void) {
  headrace_error_init(&error, message, sizeof message);
  gives_the_engines_bits("adamw", HEADRACE_ADAMW);
  gives_the_engines_bits("adam", HEADRACE_ADAM);
  gives_the_engines_bits("adagrad", HEADRACE_ADAGRAD);
  gives_the_engines_bits("lion", HEADRACE_LION);
  gives_the_engines_bits("sgd", HEADRACE_SGD);
  shares_a_norm_over_calls();
  counts_the_bytes_of_each_layout();
  says_which_gradient_is_not_finite();
  refuses_misuse();
  belongs_to_its_process();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
