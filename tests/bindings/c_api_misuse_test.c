/* SPDX-License-Identifier: Apache-2.0
 * c_api_misuse_test.c: headrace/c.h in the hands of a program that does everything wrong: each
 * answer is a code with words, and the engine is as it was. argv[1]: a folder on a drive. */
#include "c_host.h"

#include <sys/mman.h>
#include <unistd.h>

static headrace_engine* new_ready_engine(void) {
  headrace_engine* engine = new_engine(NULL);
  const headrace_group group = add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  return engine;
}
static headrace_code swallow(void* context, uint64_t first, const void* values, size_t size_bytes) {
  (void)context, (void)first, (void)values, (void)size_bytes;
  return HEADRACE_OK;
}

static headrace_code leave_alone(void* context, uint64_t first, void* values, size_t size_bytes) {
  (void)context, (void)first, (void)values, (void)size_bytes;
  return HEADRACE_OK;
}

/* ---- NULL in every place ---- */
#define REFUSED(call) EXPECT_CODE(call, HEADRACE_INVALID_ARGUMENT)

static void null_results_are_refused(void) {
  headrace_engine* e = new_ready_engine();
  headrace_gathered* g = NULL;
  headrace_parameter_facts facts;
  uint32_t n;
  char text[64];
  size_t size;
  void* data;
  headrace_parameter_facts_init(&facts);
  REFUSED(headrace_engine_group_count(e, NULL, &error));
  REFUSED(headrace_engine_parameter_count(e, NULL, &error));
  REFUSED(headrace_engine_group_name(e, 0, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_group_name(e, 0, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_group_parameters(e, 0, &n, 1, NULL, &error));
  REFUSED(headrace_engine_group_parameters(e, 0, NULL, 1, &size, &error));
  REFUSED(headrace_engine_parameter(e, NULL, &n, &error));
  REFUSED(headrace_engine_parameter(e, "g.weight", NULL, &error));
  REFUSED(headrace_engine_parameter_name(e, 0, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_parameter_name(e, 0, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_parameter_shape(e, 0, NULL, 1, &size, &error));
  REFUSED(headrace_engine_parameter_shape(e, 0, NULL, 0, NULL, &error));
  REFUSED(headrace_engine_parameter_facts(e, 0, NULL, &error));
  REFUSED(headrace_engine_plan_json(e, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_plan_json(e, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_stats_json(e, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_stats_json(e, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_load(e, 0, NULL, NULL, &error));
  REFUSED(headrace_engine_load_shard(e, 0, NULL, NULL, &error));
  REFUSED(headrace_engine_store(e, 0, HEADRACE_WEIGHT, NULL, NULL, &error));
  REFUSED(headrace_engine_load_content(e, 0, HEADRACE_WEIGHT, NULL, NULL, &error));
  REFUSED(headrace_engine_step_count(e, 0, NULL, &error));
  REFUSED(headrace_engine_set_hyperparameters(e, 0, NULL, &error));
  REFUSED(headrace_engine_section_size_bytes(e, 0, HEADRACE_F32, NULL, &error));
  REFUSED(headrace_engine_settings_json(e, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_settings_json(e, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_hash_parameters(e, NULL, &error));
  REFUSED(headrace_engine_hash_optimizer_state(e, NULL, &error));
  REFUSED(headrace_engine_resumed(e, NULL, &error));
  REFUSED(headrace_engine_resumed_trainer_state(e, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_resumed_trainer_state(e, NULL, sizeof text, &size, &error));
  REFUSED(headrace_engine_set_trainer_state(e, NULL, 1, &error));
  REFUSED(headrace_engine_durable_step(e, NULL, &error));
  REFUSED(headrace_engine_save_checkpoint(e, NULL, NULL, &error));
  REFUSED(headrace_engine_load_checkpoint(e, NULL, &error));
  REFUSED(headrace_engine_load_weights(e, NULL, NULL, &error));
  REFUSED(headrace_engine_loaded_trainer_state(e, text, sizeof text, NULL, &error));
  REFUSED(headrace_engine_gather(e, 0, 0, NULL, &error));
  REFUSED(headrace_engine_add_gradient(e, 0, NULL, HEADRACE_F32, 0, &error));
  EXPECT_OK(headrace_engine_gather(e, 0, 0, &g, &error));
  REFUSED(headrace_gathered_bytes(g, 0, NULL, &size, &error));
  REFUSED(headrace_gathered_bytes(g, 0, &data, NULL, &error));
  REFUSED(headrace_gathered_section(g, HEADRACE_F32, NULL, &size, &error));
  REFUSED(headrace_gathered_section(g, HEADRACE_F32, &data, NULL, &error));
  EXPECT_OK(headrace_gathered_release(g, &error));
  EXPECT_OK(headrace_engine_destroy(e, &error));
  e = new_engine(NULL);
  REFUSED(headrace_engine_add_hyperparameters(e, NULL, &n, &error));
  EXPECT_OK(headrace_engine_destroy(e, &error));
}

/* Every function with a handle that is none. */
static void wrong_engines_are_refused(headrace_engine* e) {
  headrace_gathered* g = NULL;
  headrace_hyperparameters values;
  headrace_parameter_spec spec;
  headrace_parameter_facts facts;
  headrace_resumed resumed;
  char text[64];
  float gradient[kElements] = {0};
  uint32_t n;
  uint64_t number;
  size_t size;
  void* data;
  headrace_hyperparameters_init(&values);
  headrace_parameter_spec_init(&spec);
  headrace_parameter_facts_init(&facts);
  headrace_resumed_init(&resumed);
  spec.name = "w";
  REFUSED(headrace_engine_load_content(e, 0, HEADRACE_WEIGHT, leave_alone, NULL, &error));
  REFUSED(headrace_engine_step_count(e, 0, &number, &error));
  REFUSED(headrace_engine_set_step_count(e, 0, 1, &error));
  REFUSED(headrace_engine_set_hyperparameters(e, 0, &values, &error));
  REFUSED(headrace_engine_section_size_bytes(e, 0, HEADRACE_F32, &number, &error));
  REFUSED(headrace_engine_settings_json(e, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_set_default_hyperparameters(e, &values, &error));
  REFUSED(headrace_engine_add_hyperparameters(e, &values, &n, &error));
  REFUSED(headrace_engine_add_group(e, "g", &spec, 1, &n, &error));
  REFUSED(headrace_engine_expect_repeated_gradients(e, 0, &error));
  REFUSED(headrace_engine_expect_no_gradients(e, 0, &error));
  REFUSED(headrace_engine_keep_bound(e, 0, &error));
  REFUSED(headrace_engine_freeze(e, &error));
  REFUSED(headrace_engine_group_count(e, &n, &error));
  REFUSED(headrace_engine_parameter_count(e, &n, &error));
  REFUSED(headrace_engine_group_name(e, 0, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_group_parameters(e, 0, &n, 1, &size, &error));
  REFUSED(headrace_engine_parameter(e, "g.w", &n, &error));
  REFUSED(headrace_engine_parameter_name(e, 0, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_parameter_shape(e, 0, NULL, 0, &size, &error));
  REFUSED(headrace_engine_parameter_facts(e, 0, &facts, &error));
  REFUSED(headrace_engine_plan_json(e, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_load(e, 0, fill_ramp, NULL, &error));
  REFUSED(headrace_engine_store(e, 0, HEADRACE_WEIGHT, swallow, NULL, &error));
  REFUSED(headrace_engine_hash_parameters(e, text, &error));
  REFUSED(headrace_engine_hash_optimizer_state(e, text, &error));
  REFUSED(headrace_engine_gather(e, 0, 0, &g, &error));
  REFUSED(headrace_engine_add_gradient(e, 0, gradient, HEADRACE_F32, 0, &error));
  REFUSED(headrace_engine_discard_gradients(e, &error));
  REFUSED(headrace_engine_step(e, NULL, NULL, &error));
  REFUSED(headrace_engine_finish_step(e, &error));
  REFUSED(headrace_engine_resumed(e, &resumed, &error));
  REFUSED(headrace_engine_resumed_trainer_state(e, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_set_trainer_state(e, text, 1, &error));
  REFUSED(headrace_engine_commit(e, &error));
  REFUSED(headrace_engine_sleep(e, NULL, &error));
  REFUSED(headrace_engine_wake(e, &error));
  REFUSED(headrace_engine_durable_step(e, &number, &error));
  REFUSED(headrace_engine_save_checkpoint(e, "d", NULL, &error));
  REFUSED(headrace_engine_load_checkpoint(e, "d", &error));
  REFUSED(headrace_engine_load_weights(e, "d", NULL, &error));
  REFUSED(headrace_engine_loaded_trainer_state(e, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_stats_json(e, text, sizeof text, &size, &error));
  REFUSED(headrace_engine_close(e, &error));
  EXPECT(headrace_engine_interrupt(e) == HEADRACE_INVALID_ARGUMENT);
  g = (headrace_gathered*)(void*)e;
  REFUSED(headrace_gathered_bytes(g, 0, &data, &size, &error));
  REFUSED(headrace_gathered_section(g, HEADRACE_F32, &data, &size, &error));
}
static void handles_that_are_none(void) {
  enum { kRounds = 2000 };
  static headrace_engine* old[kRounds];
  headrace_engine* engine;
  int i, j;
  wrong_engines_are_refused(NULL);
  for (i = 0; i < kRounds; ++i) {
    old[i] = new_engine(NULL);
    EXPECT_OK(headrace_engine_destroy(old[i], &error));
  }
  engine = new_engine(NULL);
  for (i = 0; i < kRounds; ++i) {
    REFUSED(headrace_engine_destroy(old[i], &error));
    EXPECT(old[i] != engine);
    for (j = i + 1; j < kRounds; j += 97) EXPECT(old[i] != old[j]);
  }
  wrong_engines_are_refused(old[7]);
  wrong_engines_are_refused((headrace_engine*)((uintptr_t)engine ^ (uintptr_t)1 << 32));
  wrong_engines_are_refused((headrace_engine*)((uintptr_t)engine ^ (uintptr_t)1 << 24));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* ---- sizes that nobody meant: the struct ends where readable memory does ---- */
static void struct_sizes(void) {
  static const uint32_t wrong[] = {0, 1, 4, 4097, 1u << 20, UINT32_MAX};
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages =
      (char*)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  headrace_engine_options* options =
      (headrace_engine_options*)(void*)(pages + page - sizeof(headrace_engine_options));
  headrace_engine* engine = NULL;
  headrace_hyperparameters values;
  headrace_parameter_spec specs[2];
  headrace_parameter_facts facts;
  headrace_step_options step;
  headrace_error bad;
  uint32_t n;
  size_t i;
  EXPECT(pages != MAP_FAILED && munmap(pages + page, page) == 0);
  for (i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    headrace_engine_options_init(options);
    options->struct_size = wrong[i];
    REFUSED(headrace_engine_create(options, &engine, &error));
    EXPECT_WORDS("struct_size");
    engine = new_engine(NULL);
    headrace_hyperparameters_init(&values);
    values.struct_size = wrong[i];
    REFUSED(headrace_engine_set_default_hyperparameters(engine, &values, &error));
    REFUSED(headrace_engine_set_hyperparameters(engine, 0, &values, &error));
    headrace_parameter_spec_init(&specs[0]);
    headrace_parameter_spec_init(&specs[1]);
    specs[0].name = specs[1].name = "w";
    specs[0].struct_size = wrong[i];
    REFUSED(headrace_engine_add_group(engine, "g", specs, 2, &n, &error));
    specs[0].struct_size = specs[1].struct_size;
    specs[1].struct_size = wrong[i];
    REFUSED(headrace_engine_add_group(engine, "g", specs, 2, &n, &error));
    EXPECT_OK(headrace_engine_group_count(engine, &n, &error));
    EXPECT(n == 0);
    add_vector(engine, "g");
    EXPECT_OK(headrace_engine_freeze(engine, &error));
    EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error));
    facts.struct_size = wrong[i];
    REFUSED(headrace_engine_parameter_facts(engine, 0, &facts, &error));
    headrace_step_options_init(&step);
    step.struct_size = wrong[i];
    REFUSED(headrace_engine_step(engine, &step, NULL, &error));
    headrace_error_init(&bad, (char*)1, 1 << 20); /* nothing is written through it */
    bad.struct_size = wrong[i];
    EXPECT(headrace_engine_group_count(engine, &n, &bad) == HEADRACE_INVALID_ARGUMENT);
    EXPECT_OK(headrace_engine_destroy(engine, &error));
    engine = NULL;
  }
  /* A count that is no count. */
  engine = new_engine(NULL);
  headrace_parameter_spec_init(&specs[0]);
  REFUSED(headrace_engine_add_group(engine, "g", specs, SIZE_MAX, &n, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  munmap(pages, page);
}

/* ---- names, shapes, dtypes ---- */
static void names_and_shapes(void) {
  static const char* const not_utf8[] = {"\xff",         "a\x80",        "\xc0\xaf",
                                         "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                         "\xc3",         "\xf0\x9f\x98"};
  const int64_t most[2] = {(int64_t)1 << 40, (int64_t)1 << 40}, negative[1] = {-1}, none[1] = {0};
  const int64_t ones[1] = {1};
  const size_t megabyte = 1 << 20;
  char* const big = (char*)malloc(megabyte + 1);
  headrace_engine* engine = new_engine(NULL);
  headrace_parameter_spec spec;
  char text[64];
  uint32_t n;
  size_t i, needed;
  memset(big, 'x', megabyte);
  big[megabyte] = 0;
  headrace_parameter_spec_init(&spec);
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error)); /* no name */
  spec.name = "";
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.name = "w";
  REFUSED(headrace_engine_add_group(engine, big, &spec, 1, &n, &error));
  EXPECT(error.message_needed < 1000);
  for (i = 0; i < sizeof not_utf8 / sizeof not_utf8[0]; ++i) {
    REFUSED(headrace_engine_add_group(engine, not_utf8[i], &spec, 1, &n, &error));
    EXPECT_WORDS("UTF-8");
    REFUSED(headrace_engine_parameter(engine, not_utf8[i], &n, &error));
  }
  spec.name = not_utf8[0];
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.name = "w";
  spec.dimensions = UINT32_MAX;
  spec.shape = ones;
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.dimensions = 2;
  spec.shape = most;
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  EXPECT_WORDS("elements");
  spec.dimensions = 1;
  spec.shape = negative;
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.shape = none;
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.shape = ones;
  for (i = 0; i < 3; ++i) {
    spec.dtype = i == 0 ? -1 : i == 1 ? HEADRACE_U8 + 1 : INT32_MAX;
    REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  }
  spec.dtype = HEADRACE_BF16;
  spec.hyperparameters = 1;
  REFUSED(headrace_engine_add_group(engine, "g", &spec, 1, &n, &error));
  spec.hyperparameters = 0;
  EXPECT_OK(headrace_engine_group_count(engine, &n, &error));
  EXPECT(n == 0);
  EXPECT_OK(headrace_engine_add_group(engine, "", &spec, 1, &n, &error)); /* a group without name */
  EXPECT_OK(headrace_engine_parameter_name(engine, 0, text, sizeof text, &needed, &error));
  EXPECT(strcmp(text, "w") == 0);
  spec.name = "\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4";
  EXPECT_OK(headrace_engine_add_group(engine, "\n\"\\", &spec, 1, &n, &error));
  REFUSED(headrace_engine_parameter(engine, big, &n, &error));
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  free(big);
}

/* ---- more handles than there are ---- */
static void limits(void) {
  static headrace_engine* engines[300];
  static headrace_gathered* leases[9000];
  headrace_engine* engine;
  int i, round, open;
  for (round = 0; round < 2; ++round) {
    for (open = 0; open < 300; ++open) {
      engines[open] = NULL;
      if (headrace_engine_create(NULL, &engines[open], &error) != HEADRACE_OK) break;
    }
    EXPECT(open == 256 && error.code == HEADRACE_OUT_OF_BUDGET && engines[open] == NULL);
    EXPECT_WORDS("destroy");
    for (i = 0; i < open; ++i) EXPECT_OK(headrace_engine_destroy(engines[i], &error));
  }
  engine = new_ready_engine();
  for (round = 0; round < 2; ++round) {
    for (open = 0; open < 9000; ++open) {
      if (headrace_engine_gather(engine, 0, 0, &leases[open], &error) != HEADRACE_OK) break;
    }
    EXPECT(open == 8192 && error.code == HEADRACE_OUT_OF_BUDGET);
    EXPECT_WORDS("release");
    for (i = 0; i < open; ++i) EXPECT_OK(headrace_gathered_release(leases[i], &error));
  }
  EXPECT_OK(headrace_engine_destroy(engine, &error)); /* the one that found no handle is no lease */
}

/* ---- orders ---- */
static void expect_all(headrace_engine* e, headrace_code wanted) {
  float gradient[kElements] = {0};
  char hash[HEADRACE_HASH_CAPACITY];
  headrace_gathered* g = NULL;
  uint64_t steps;
  EXPECT_CODE(headrace_engine_load(e, 0, fill_ramp, NULL, &error), wanted);
  EXPECT_CODE(headrace_engine_load_content(e, 0, HEADRACE_EXP_AVG, leave_alone, NULL, &error),
              wanted);
  EXPECT_CODE(headrace_engine_step_count(e, 0, &steps, &error), wanted);
  EXPECT_CODE(headrace_engine_set_step_count(e, 0, 1, &error), wanted);
  EXPECT_CODE(headrace_engine_mark_written(e, 7, "x", &error),
              wanted == HEADRACE_OK ? HEADRACE_NOT_FOUND : wanted);
  EXPECT_CODE(headrace_engine_store(e, 0, HEADRACE_WEIGHT, swallow, NULL, &error), wanted);
  EXPECT_CODE(headrace_engine_hash_parameters(e, hash, &error), wanted);
  EXPECT_CODE(headrace_engine_hash_optimizer_state(e, hash, &error), wanted);
  EXPECT_CODE(headrace_engine_gather(e, 0, 0, &g, &error), wanted);
  EXPECT_CODE(headrace_engine_add_gradient(e, 0, gradient, HEADRACE_F32, 0, &error), wanted);
  EXPECT_CODE(headrace_engine_discard_gradients(e, &error), wanted);
  EXPECT_CODE(headrace_engine_step(e, NULL, NULL, &error), wanted);
}
static void expect_no_registration(headrace_engine* e) {
  headrace_hyperparameters values;
  headrace_parameter_spec spec;
  uint32_t n;
  headrace_hyperparameters_init(&values);
  headrace_parameter_spec_init(&spec);
  spec.name = "w";
  EXPECT_CODE(headrace_engine_set_default_hyperparameters(e, &values, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_add_hyperparameters(e, &values, &n, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_add_group(e, "h", &spec, 1, &n, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_expect_repeated_gradients(e, 0, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_expect_no_gradients(e, 0, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_keep_bound(e, 0, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_freeze(e, &error), HEADRACE_WRONG_STATE);
}
static void expect_questions(headrace_engine* e) {
  headrace_parameter_facts facts;
  char text[4096];
  uint32_t n;
  size_t size;
  headrace_parameter_facts_init(&facts);
  EXPECT_OK(headrace_engine_group_count(e, &n, &error));
  EXPECT(n == 1);
  EXPECT_OK(headrace_engine_parameter_name(e, 0, text, sizeof text, &size, &error));
  EXPECT_OK(headrace_engine_parameter_shape(e, 0, NULL, 0, &size, &error));
  EXPECT_OK(headrace_engine_parameter_facts(e, 0, &facts, &error));
  EXPECT_OK(headrace_engine_stats_json(e, text, sizeof text, &size, &error));
  EXPECT_OK(headrace_engine_settings_json(e, NULL, 0, &size, &error));
}
static void expect_no_change(headrace_engine* e, headrace_code wanted) {
  headrace_hyperparameters values;
  headrace_hyperparameters_init(&values);
  EXPECT_CODE(headrace_engine_set_hyperparameters(e, 0, &values, &error), wanted);
}
static void orders(void) {
  headrace_engine* e = new_engine(NULL);
  float gradient[kElements] = {0};
  EXPECT_CODE(headrace_engine_freeze(e, &error), HEADRACE_WRONG_STATE); /* no group */
  add_vector(e, "g");
  expect_all(e, HEADRACE_WRONG_STATE);
  expect_questions(e);
  EXPECT_OK(headrace_engine_freeze(e, &error));
  expect_no_registration(e);
  EXPECT_CODE(headrace_engine_step(e, NULL, NULL, &error), HEADRACE_WRONG_STATE); /* not loaded */
  EXPECT_CODE(headrace_engine_load_content(e, 0, HEADRACE_WEIGHT, leave_alone, NULL, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_set_step_count(e, 0, 1, &error), HEADRACE_WRONG_STATE);
  expect_no_change(e, HEADRACE_OK);
  EXPECT_OK(headrace_engine_load(e, 0, fill_ramp, NULL, &error));
  EXPECT_OK(headrace_engine_step(e, NULL, NULL, &error)); /* without a gradient nothing moves */
  EXPECT_OK(headrace_engine_finish_step(e, &error));
  EXPECT_OK(headrace_engine_add_gradient(e, 0, gradient, HEADRACE_F32, 0, &error));
  EXPECT_CODE(headrace_engine_add_gradient(e, 0, gradient, HEADRACE_F32, 0, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_add_gradient(e, 1, gradient, HEADRACE_F32, 0, &error),
              HEADRACE_NOT_FOUND);
  EXPECT(headrace_engine_interrupt(e) == HEADRACE_OK);
  expect_all(e, HEADRACE_INTERRUPTED);
  expect_no_change(e, HEADRACE_INTERRUPTED);
  expect_questions(e);
  EXPECT_OK(headrace_engine_close(e, &error));
  expect_all(e, HEADRACE_WRONG_STATE);
  expect_no_change(e, HEADRACE_WRONG_STATE);
  expect_no_registration(e);
  expect_questions(e);
  EXPECT_OK(headrace_engine_destroy(e, &error));
  e = new_engine(NULL);
  EXPECT_OK(headrace_engine_close(e, &error)); /* before freeze */
  EXPECT_CODE(headrace_engine_freeze(e, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_destroy(e, &error));
}

/* ---- callbacks that call ---- */
struct caller {
  headrace_engine* engine;
  int calls;
};
static void call_everything_from_below(struct caller* caller) {
  headrace_engine* const e = caller->engine;
  ++caller->calls;
  expect_all(e, HEADRACE_WRONG_STATE);
  expect_no_change(e, HEADRACE_WRONG_STATE);
  expect_no_registration(e);
  EXPECT_CODE(headrace_engine_close(e, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_destroy(e, &error), HEADRACE_WRONG_STATE);
  expect_questions(e);
}
static headrace_code fill_and_call(void* context, headrace_parameter parameter, void* values,
                                   size_t size_bytes) {
  call_everything_from_below((struct caller*)context);
  return fill_ramp(NULL, parameter, values, size_bytes);
}
static headrace_code sink_and_call(void* context, uint64_t first, const void* values,
                                   size_t size_bytes) {
  (void)first, (void)values, (void)size_bytes;
  call_everything_from_below((struct caller*)context);
  return HEADRACE_OK;
}
static headrace_code source_and_call(void* context, uint64_t first, void* values,
                                     size_t size_bytes) {
  (void)first, (void)values, (void)size_bytes;
  call_everything_from_below((struct caller*)context);
  return HEADRACE_OK;
}
static headrace_code source_and_interrupt(void* context, uint64_t first, void* values,
                                          size_t size_bytes) {
  (void)first, (void)values, (void)size_bytes;
  EXPECT(headrace_engine_interrupt((headrace_engine*)context) == HEADRACE_OK);
  return HEADRACE_OK;
}
static headrace_code answer_oddly(void* context, headrace_parameter parameter, void* values,
                                  size_t size_bytes) {
  (void)parameter, (void)values, (void)size_bytes;
  return *(const headrace_code*)context;
}
static headrace_code fill_and_interrupt(void* context, headrace_parameter parameter, void* values,
                                        size_t size_bytes) {
  EXPECT(headrace_engine_interrupt((headrace_engine*)context) == HEADRACE_OK);
  return fill_ramp(NULL, parameter, values, size_bytes);
}
static void callbacks_that_call(void) {
  static const headrace_code odd[] = {-1, HEADRACE_FAILED + 1, INT32_MAX, INT32_MIN};
  headrace_engine* e = new_ready_engine();
  struct caller caller;
  size_t i;
  caller.engine = e;
  caller.calls = 0;
  EXPECT_OK(headrace_engine_load(e, 0, fill_and_call, &caller, &error));
  EXPECT_OK(headrace_engine_store(e, 0, HEADRACE_WEIGHT, sink_and_call, &caller, &error));
  EXPECT_OK(headrace_engine_load_content(e, 0, HEADRACE_MASTER, source_and_call, &caller, &error));
  EXPECT(caller.calls == 3);
  for (i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
    headrace_code code = odd[i];
    REFUSED(headrace_engine_load(e, 0, answer_oddly, &code, &error));
    EXPECT_WORDS("no headrace_code");
  }
  EXPECT_OK(headrace_engine_load(e, 0, fill_ramp, NULL, &error));
  EXPECT_OK(headrace_engine_step(e, NULL, NULL, &error));
  EXPECT_CODE(headrace_engine_load_content(e, 0, HEADRACE_EXP_AVG, source_and_interrupt, e, &error),
              HEADRACE_INTERRUPTED);
  EXPECT_OK(headrace_engine_destroy(e, &error));
  e = new_engine(NULL);
  add_vector(e, "g");
  EXPECT_OK(headrace_engine_freeze(e, &error));
  EXPECT_CODE(headrace_engine_load(e, 0, fill_and_interrupt, e, &error), HEADRACE_INTERRUPTED);
  EXPECT_OK(headrace_engine_destroy(e, &error));
}

/* ---- a device that begins to fail at its n-th call ---- */
static int calls_left; /* any thread; below 0: failing */
static headrace_code left(void) {
  return __atomic_sub_fetch(&calls_left, 1, __ATOMIC_RELAXED) >= 0 ? HEADRACE_OK : HEADRACE_IO;
}
#define OR_FAIL(call) (left() == HEADRACE_OK ? (call) : HEADRACE_IO)
static headrace_code frail_stream(void* c, headrace_stream* out) {
  return OR_FAIL(host_create_stream(c, out));
}
static headrace_code frail_copy(void* c, headrace_stream s, void* to, const void* from, size_t n) {
  return OR_FAIL(host_copy(c, s, to, from, n));
}
static headrace_code frail_zero(void* c, headrace_stream s, void* to, size_t n) {
  return OR_FAIL(host_fill_zero(c, s, to, n));
}
static headrace_code frail_accumulate(void* c, headrace_stream s, const headrace_accumulation* w) {
  return OR_FAIL(host_accumulate(c, s, w));
}
static headrace_code frail_notify(void* c, headrace_stream s, void (*f)(void*), void* a) {
  return OR_FAIL(host_notify(c, s, f, a));
}
static headrace_code frail_record(void* c, headrace_stream s, headrace_event* out) {
  return OR_FAIL(host_record(c, s, out));
}
static headrace_code frail_wait(void* c, headrace_stream s, headrace_event e) {
  return OR_FAIL(host_wait(c, s, e));
}
static headrace_code frail_synchronize(void* c, headrace_stream s) {
  return OR_FAIL(host_synchronize(c, s));
}
static int crooked;
static void* frail_allocate(void* c, size_t size_bytes) {
  return crooked                 ? (char*)host_allocate(c, size_bytes + 256) + 8
         : left() == HEADRACE_OK ? host_allocate(c, size_bytes)
                                 : NULL;
}
static void frail_deallocate(void* c, void* data, size_t size_bytes) {
  host_deallocate(c, crooked ? (char*)data - 8 : data, size_bytes);
}
/* Returns whether all went well. */
static int train_on(headrace_engine* e, headrace_code* first) {
  headrace_gathered* g = NULL;
  float gradient[kElements] = {1};
  headrace_code codes[8];
  int step, ok = 1, i, n = 0;
  add_vector(e, "g");
  add_vector(e, "h");
  codes[n++] = headrace_engine_freeze(e, &error);
  codes[n++] = headrace_engine_load(e, 0, fill_ramp, NULL, &error);
  codes[n++] = headrace_engine_load(e, 1, fill_ramp, NULL, &error);
  for (step = 0; step < 2; ++step) {
    for (i = 0; i < 2; ++i) {
      codes[3] = headrace_engine_gather(e, (headrace_group)i, 0, &g, &error);
      codes[4] = codes[3] == HEADRACE_OK ? headrace_gathered_release(g, &error) : codes[3];
      codes[5] =
          headrace_engine_add_gradient(e, (headrace_parameter)i, gradient, HEADRACE_F32, 0, &error);
      codes[6] = codes[7] = HEADRACE_OK;
      if (i == 1) codes[6] = headrace_engine_step(e, NULL, NULL, &error);
      for (n = 0; n < 8; ++n) {
        if (codes[n] == HEADRACE_OK) continue;
        if (ok) *first = codes[n];
        ok = 0;
      }
    }
  }
  return ok;
}
static void a_frail_device(const char* folder) {
  char text[8192];
  struct host host;
  headrace_device device;
  headrace_engine_options options;
  int frail_from, went_well = 0;
  memset(&host, 0, sizeof host);
  device = device_of(&host);
  device.allocate = frail_allocate;
  device.deallocate = frail_deallocate;
  device.create_stream = frail_stream;
  device.copy = frail_copy;
  device.fill_zero = frail_zero;
  device.accumulate = frail_accumulate;
  device.notify = frail_notify;
  device.record = frail_record;
  device.wait = frail_wait;
  device.synchronize = frail_synchronize;
  offloaded_settings(text, sizeof text, folder);
  headrace_engine_options_init(&options);
  options.settings_json = text;
  options.device = &device;
  options.log = host_log;
  options.log_context = &host;
  for (frail_from = 0; frail_from < 200 && !went_well; ++frail_from) {
    headrace_engine* engine = NULL;
    headrace_code first = HEADRACE_OK;
    __atomic_store_n(&calls_left, frail_from, __ATOMIC_RELAXED);
    EXPECT_OK(headrace_engine_create(&options, &engine, &error));
    went_well = train_on(engine, &first);
    EXPECT(went_well || first == HEADRACE_IO || first == HEADRACE_OUT_OF_BUDGET);
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  }
  EXPECT(went_well && frail_from > 10);
  {
    headrace_engine* engine = NULL;
    __atomic_store_n(&calls_left, 1 << 30, __ATOMIC_RELAXED);
    crooked = 1;
    EXPECT_OK(headrace_engine_create(&options, &engine, &error));
    add_vector(engine, "g");
    EXPECT_CODE(headrace_engine_freeze(engine, &error), HEADRACE_OUT_OF_BUDGET);
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  }
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  headrace_error_init(&error, message, sizeof message);
  null_results_are_refused();
  handles_that_are_none();
  struct_sizes();
  names_and_shapes();
  limits();
  orders();
  callbacks_that_call();
  a_frail_device(folder);
  if (failures > 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures > 0;
}
