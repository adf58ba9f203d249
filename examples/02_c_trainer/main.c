/* SPDX-License-Identifier: Apache-2.0
 * 02_c_trainer: a two-layer network learns a curve, in C. Each layer is a group, gathered while it
 * is used.
 *
 *   02_c_trainer         all in memory
 *   02_c_trainer FOLDER  parameters and state in a swap file there: the same output, bit for bit
 */
// [embedding]
#include <headrace/c.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHidden = 32, kSteps = 200, kPoints = 16 };

static char message[4096];
static headrace_error error;
static void must(headrace_code code) { /* cause, consequence and what helps are in the message */
  if (code == HEADRACE_OK) return;
  fprintf(stderr, "02_c_trainer: %s: %s\n", headrace_code_name(code), message);
  exit(1);
}

/* Called by headrace_engine_load() for each parameter of the group. */
static headrace_code fill(void* context, headrace_parameter parameter, void* values,
                          size_t size_bytes) {
  uint32_t* random = (uint32_t*)context;
  float* out = (float*)values;
  size_t i;
  (void)parameter;
  for (i = 0; i < size_bytes / sizeof(float); ++i) {
    *random = *random * 1664525u + 1013904223u;
    out[i] = (float)(*random >> 8) / (float)(1u << 24) - 0.5f;
  }
  return HEADRACE_OK;
}

/* A group of one weight matrix and one vector. */
static headrace_group add_layer(headrace_engine* engine, const char* name, const char* vector) {
  const int64_t shape[1] = {kHidden};
  headrace_parameter_spec specs[2];
  headrace_group group;
  int i;
  for (i = 0; i < 2; ++i) {
    headrace_parameter_spec_init(&specs[i]);
    specs[i].dtype = HEADRACE_F32;
    specs[i].shape = shape;
    specs[i].dimensions = 1;
  }
  specs[0].name = "weight";
  specs[1].name = vector;
  must(headrace_engine_add_group(engine, name, specs, 2, &group, &error));
  return group;
}

/* In a gathered group: parameters number 2 * group and 2 * group + 1. */
static const float* values_of(headrace_gathered* gathered, headrace_parameter parameter) {
  void* data;
  size_t size_bytes;
  must(headrace_gathered_bytes(gathered, parameter, &data, &size_bytes, &error));
  return (const float*)data;
}

/* The hidden values of every point. */
static void forward(headrace_engine* engine, headrace_group first, float hidden[][kHidden]) {
  headrace_gathered* g;
  int p, i;
  must(headrace_engine_gather(engine, first, 0, &g, &error)); /* in memory from here ... */
  for (p = 0; p < kPoints; ++p)
    for (i = 0; i < kHidden; ++i) {
      const float x = (float)p / kPoints;
      const float sum = values_of(g, 0)[i] * x + values_of(g, 1)[i];
      hidden[p][i] = sum > 0 ? sum : 0;
    }
  must(headrace_gathered_release(g, &error)); /* ... to here */
}

/* Returns the loss. d: gradients of first.weight, first.bias, second.weight, second.skip. */
static float backward(headrace_engine* engine, headrace_group second, float hidden[][kHidden],
                      float d[][kHidden]) {
  headrace_gathered* g;
  float slope[kPoints], loss = 0;
  int p, i;
  must(headrace_engine_gather(engine, second, 0, &g, &error));
  for (p = 0; p < kPoints; ++p) {
    const float x = (float)p / kPoints, wanted = x * x;
    float y = 0;
    for (i = 0; i < kHidden; ++i) y += hidden[p][i] * values_of(g, 2)[i] + x * values_of(g, 3)[i];
    slope[p] = 2 * (y - wanted) / kPoints;
    loss += (y - wanted) * (y - wanted) / kPoints;
  }
  for (p = 0; p < kPoints; ++p)
    for (i = 0; i < kHidden; ++i) {
      const float x = (float)p / kPoints;
      const float back = hidden[p][i] > 0 ? slope[p] * values_of(g, 2)[i] : 0;
      d[0][i] += back * x;
      d[1][i] += back;
      d[2][i] += slope[p] * hidden[p][i];
      d[3][i] += slope[p] * x;
    }
  must(headrace_gathered_release(g, &error));
  return loss;
}

static void train(headrace_engine* engine) {
  const headrace_group first = add_layer(engine, "first", "bias");
  const headrace_group second = add_layer(engine, "second", "skip");
  char hash[HEADRACE_HASH_CAPACITY];
  uint32_t random = 1;
  int step, i;
  must(headrace_engine_freeze(engine, &error)); /* plans, and allocates exactly the plan */
  must(headrace_engine_load(engine, first, fill, &random, &error));
  must(headrace_engine_load(engine, second, fill, &random, &error));

  for (step = 1; step <= kSteps; ++step) {
    float hidden[kPoints][kHidden], d[4][kHidden], loss;
    headrace_step_options options;
    memset(d, 0, sizeof d);
    forward(engine, first, hidden);
    loss = backward(engine, second, hidden, d);
    for (i = 0; i < 4; ++i)
      must(headrace_engine_add_gradient(engine, (headrace_parameter)i, d[i], HEADRACE_F32, 0,
                                        &error));
    headrace_step_options_init(&options);
    options.learning_rate = 0.01f;
    options.max_norm = 1;
    must(headrace_engine_step(engine, &options, NULL, &error));
    if (step == 1 || step % 50 == 0) printf("step %3d: loss %.5f\n", step, loss);
  }
  must(headrace_engine_hash_parameters(engine, hash, &error));
  printf("parameters %s\n", hash);
  must(headrace_engine_hash_optimizer_state(engine, hash, &error));
  printf("state      %s\n", hash);
}

int main(int argc, char** argv) {
  headrace_engine_options options;
  headrace_engine* engine;
  char path[4096];
  const char* overrides[4];
  headrace_error_init(&error, message, sizeof message);
  headrace_engine_options_init(&options);
  if (argc > 1) {
    snprintf(path, sizeof path, "zero_optimization.offload_param.nvme_path=%s", argv[1]);
    overrides[0] = path;
    overrides[1] = "zero_optimization.offload_param.device=nvme";
    overrides[2] = "zero_optimization.offload_optimizer.device=nvme";
    overrides[3] = "headrace.allow_memory_backed=true"; /* a few numbers may lie in a tmpfs */
    options.overrides = overrides;
    options.override_count = 4;
  }
  must(headrace_engine_create(&options, &engine, &error));
  train(engine);
  must(headrace_engine_destroy(engine, &error)); /* threads, files and memory are gone */
  return 0;
}
// [/embedding]
