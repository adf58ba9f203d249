/* SPDX-License-Identifier: Apache-2.0
 * c_api_test.c: headrace/c.h as a C99 program meets it: every function, and every code that a call
 * can be brought to give. argv[1]: a folder on a drive. */
#include "c_host.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static headrace_code refuse_fill(void* context, headrace_parameter parameter, void* values,
                                 size_t size_bytes) {
  (void)parameter, (void)values, (void)size_bytes;
  return *(const headrace_code*)context;
}
struct sums {
  uint64_t next;
  double sum;
  headrace_code answer;
};
static headrace_code add_up(void* context, uint64_t first, const void* values, size_t size_bytes) {
  struct sums* sums = (struct sums*)context;
  const float* in = (const float*)values;
  size_t i;
  EXPECT(first == sums->next);
  for (i = 0; i < size_bytes / sizeof(float); ++i) sums->sum += in[i];
  sums->next += size_bytes / sizeof(float);
  return sums->answer;
}

/* ---- version, names, errors ---- */
static void version_and_codes(void) {
  int code;
  EXPECT(headrace_version() == HEADRACE_C_VERSION);
  EXPECT(strlen(headrace_version_text()) >= 5);
  for (code = HEADRACE_OK; code <= HEADRACE_FAILED; ++code)
    EXPECT(headrace_code_name(code)[0] == 'k');
  EXPECT(strcmp(headrace_code_name(-1), "unknown code") == 0);
  EXPECT(strcmp(headrace_code_name(HEADRACE_FAILED + 1), "unknown code") == 0);
  EXPECT(headrace_is_refusal(HEADRACE_SETTINGS) == 1);
  EXPECT(headrace_is_refusal(HEADRACE_OUT_OF_BUDGET) == 1);
  EXPECT(headrace_is_refusal(HEADRACE_OK) == 0 && headrace_is_refusal(HEADRACE_IO) == 0);
  EXPECT(headrace_is_refusal(-1) == 0 && headrace_is_refusal(HEADRACE_FAILED + 1) == 0);
}

static void errors_are_the_callers(void) {
  char small[8];
  headrace_error narrow, wrong;
  headrace_engine* engine = new_engine(NULL);
  headrace_parameter parameter;
  headrace_error_init(&narrow, small, sizeof small);
  EXPECT(headrace_engine_parameter(engine, "none", &parameter, &narrow) == HEADRACE_NOT_FOUND);
  EXPECT(strlen(small) == 7 && narrow.message_needed > sizeof small);
  EXPECT(headrace_engine_parameter(engine, "none", &parameter, NULL) == HEADRACE_NOT_FOUND);
  headrace_error_init(&narrow, NULL, 0);
  EXPECT(headrace_engine_parameter(engine, "none", &parameter, &narrow) == HEADRACE_NOT_FOUND);
  EXPECT(narrow.message_needed > 1);
  /* A character of two bytes is not cut in the middle. */
  headrace_error_init(&narrow, small, sizeof small);
  EXPECT(headrace_engine_parameter(engine, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", &parameter,
                                   &narrow) == HEADRACE_NOT_FOUND);
  memset(&wrong, 0, sizeof wrong);
  EXPECT(headrace_engine_parameter(engine, "none", &parameter, &wrong) ==
         HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* ---- create ---- */
/* Of an engine with headrace.update_threads=1: an engine made of them has the same. */
static void gpu_is_there_or_named_as_missing(void) {
  headrace_engine_options options;
  headrace_engine* engine = NULL;
  headrace_cuda cuda;
  headrace_device device;
  char missing[1024];
  size_t needed = 0;
  EXPECT_OK(headrace_cuda_missing(missing, sizeof missing, &needed, &error));
  EXPECT(needed == strlen(missing) + 1);
  headrace_cuda_init(&cuda);
  headrace_engine_options_init(&options);
  options.cuda = &cuda;
  if (missing[0] == '\0') {
    EXPECT_OK(headrace_engine_create(&options, &engine, &error));
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  } else {
    EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_UNSUPPORTED);
    EXPECT_WORDS(missing);
  }
  cuda.ordinal = -1;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_UNSUPPORTED);
  cuda.struct_size = 3;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  memset(&device, 0, sizeof device);
  options.device = &device;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("both device and cuda");
}
static void settings_come_back(headrace_engine* engine) {
  static char text[16384], again[16384];
  headrace_engine* other;
  size_t needed = 0, same = 0;
  EXPECT_OK(headrace_engine_settings_json(engine, NULL, 0, &needed, &error));
  EXPECT(needed > 100 && needed <= sizeof text);
  EXPECT_OK(headrace_engine_settings_json(engine, text, sizeof text, &needed, &error));
  EXPECT(strstr(text, "\"update_threads\": 1") != NULL && strlen(text) + 1 == needed);
  other = new_engine(text);
  EXPECT_OK(headrace_engine_settings_json(other, again, sizeof again, &same, &error));
  EXPECT(same == needed && strcmp(text, again) == 0);
  EXPECT_OK(headrace_engine_destroy(other, &error));
}
/* ---- what a trainer tells the engine beside its training ---- */
static int32_t asked = 0;
static int32_t stop_when_asked(void* context) {
  ++asked;
  return *(const int32_t*)context;
}
static headrace_code fill_zeros(void* context, headrace_parameter parameter, void* values,
                                size_t size_bytes) {
  (void)context, (void)parameter, (void)values, (void)size_bytes; /* they hold zeros */
  return HEADRACE_OK;
}
static headrace_code take_any(void* context, uint64_t first_element, const void* values,
                              size_t size_bytes) {
  (void)context, (void)first_element, (void)values, (void)size_bytes;
  return HEADRACE_OK;
}
static void polls_frozen_parameters_and_writes(void) {
  headrace_engine_options options;
  headrace_parameter_spec specs[2];
  headrace_engine* engine = NULL;
  headrace_group group;
  int64_t shape = 4;
  int32_t stop = 1;
  float gradient[4] = {1, 1, 1, 1};
  char hash[HEADRACE_HASH_CAPACITY];
  headrace_engine_options_init(&options);
  options.poll = stop_when_asked;
  options.poll_context = &stop;
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  for (int i = 0; i < 2; ++i) {
    headrace_parameter_spec_init(&specs[i]);
    specs[i].name = i == 0 ? "base" : "adapter";
    specs[i].dtype = HEADRACE_F32;
    specs[i].shape = &shape;
    specs[i].dimensions = 1;
    specs[i].frozen = i == 0;
  }
  EXPECT_OK(headrace_engine_add_group(engine, "g", specs, 2, &group, &error));
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_zeros, NULL, &error));
  EXPECT_CODE(headrace_engine_hash_parameters(engine, hash, &error), HEADRACE_INTERRUPTED);
  EXPECT_WORDS("given up");
  EXPECT(asked == 1);
  stop = 0;
  EXPECT_OK(headrace_engine_hash_parameters(engine, hash, &error));
  EXPECT_CODE(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("g.base");
  EXPECT_OK(headrace_engine_add_gradient(engine, 1, gradient, HEADRACE_F32, 0, &error));
  EXPECT_OK(headrace_engine_step(engine, NULL, NULL, &error));
  EXPECT_CODE(headrace_engine_store(engine, 0, HEADRACE_EXP_AVG, take_any, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_store(engine, 1, HEADRACE_EXP_AVG, take_any, NULL, &error));
  EXPECT_CODE(headrace_engine_mark_written(engine, group, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_mark_written(engine, group, "the trainer wrote to g.base", &error));
  EXPECT_CODE(headrace_engine_store(engine, 1, HEADRACE_WEIGHT, take_any, NULL, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_WORDS("the trainer wrote to g.base");
  EXPECT_OK(headrace_engine_load(engine, group, fill_zeros, NULL, &error));
  EXPECT_OK(headrace_engine_hash_parameters(engine, hash, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}
/* Neither 16-bit dtype enabled is f32; without settings nothing was asked. */
static void settings_say_the_dtype(void) {
  static char text[16384];
  headrace_engine* engine = new_engine("{\"fp16\": {\"enabled\": false}}");
  size_t needed = 0;
  EXPECT_OK(headrace_engine_settings_json(engine, text, sizeof text, &needed, &error));
  EXPECT(strstr(text, "\"bf16\": {\n    \"enabled\": false") != NULL);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  EXPECT_OK(headrace_engine_create(NULL, &engine, &error));
  EXPECT_OK(headrace_engine_settings_json(engine, text, sizeof text, &needed, &error));
  EXPECT(strstr(text, "\"bf16\"") == NULL);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}
static void create_refuses(const char* folder) {
  headrace_engine* engine = NULL;
  headrace_engine_options options;
  const char* overrides[2] = {"headrace.update_threads=1", NULL};
  char bigger[sizeof(headrace_engine_options) + 8];
  char path[4096];
  headrace_engine_options_init(&options);
  EXPECT_CODE(headrace_engine_create(&options, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_create(NULL, &engine, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  EXPECT_OK(headrace_engine_destroy(NULL, &error));

  options.settings_json = "{\"gradient_cliping\": 1}";
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_SETTINGS);
  EXPECT_WORDS("gradient_clipping");
  options.settings_file = "x";
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  options.settings_json = NULL;
  snprintf(path, sizeof path, "%s/no such file.json", folder);
  options.settings_file = path;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_NOT_FOUND);
  options.settings_file = NULL;

  options.overrides = overrides;
  options.override_count = 1;
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  settings_come_back(engine);
  settings_say_the_dtype();
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  options.override_count = 2;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  options.overrides = NULL;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  options.override_count = 0;

  options.header_version = HEADRACE_C_VERSION + 1000;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_UNSUPPORTED);
  options.header_version = HEADRACE_C_VERSION + 1; /* a patch is compatible */
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  gpu_is_there_or_named_as_missing();
  headrace_engine_options_init(&options);
  options.struct_size =
      (uint32_t)offsetof(headrace_engine_options, cuda); /* of before it had one */
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  headrace_engine_options_init(&options);
  options.struct_size = 4;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);

  /* A newer header's struct is understood while its new fields are zero. */
  memset(bigger, 0, sizeof bigger);
  headrace_engine_options_init(&options);
  options.struct_size = sizeof bigger;
  memcpy(bigger, &options, sizeof options);
  EXPECT_OK(headrace_engine_create((const headrace_engine_options*)(void*)bigger, &engine, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  bigger[sizeof bigger - 1] = 1;
  EXPECT_CODE(
      headrace_engine_create((const headrace_engine_options*)(void*)bigger, &engine, &error),
      HEADRACE_UNSUPPORTED);
}

/* ---- handles ---- */
static void handles_are_never_followed(void) {
  headrace_engine* engine = new_engine(NULL);
  headrace_engine* wrong[4];
  headrace_gathered* gathered = NULL;
  headrace_group group = add_vector(engine, "g");
  uint32_t count;
  void* data;
  size_t size;
  int i;
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  EXPECT_OK(headrace_engine_gather(engine, group, 0, &gathered, &error));
  wrong[0] = NULL;
  wrong[1] = (headrace_engine*)(void*)&count;
  wrong[2] = (headrace_engine*)(void*)gathered; /* of another kind */
  wrong[3] = (headrace_engine*)(uintptr_t)UINT64_MAX;
  for (i = 0; i < 4; ++i) {
    EXPECT_CODE(headrace_engine_group_count(wrong[i], &count, &error), HEADRACE_INVALID_ARGUMENT);
    EXPECT(headrace_engine_interrupt(wrong[i]) == HEADRACE_INVALID_ARGUMENT);
    EXPECT_CODE(headrace_engine_step(wrong[i], NULL, NULL, &error), HEADRACE_INVALID_ARGUMENT);
    if (i > 0) EXPECT_CODE(headrace_engine_destroy(wrong[i], &error), HEADRACE_INVALID_ARGUMENT);
  }
  EXPECT_CODE(headrace_gathered_bytes((headrace_gathered*)(void*)engine, 0, &data, &size, &error),
              HEADRACE_INVALID_ARGUMENT);
  /* An open lease keeps its engine. */
  EXPECT_CODE(headrace_engine_destroy(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_WORDS("'g'");
  EXPECT_CODE(headrace_engine_close(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_gathered_release(gathered, &error));
  EXPECT_CODE(headrace_gathered_release(gathered, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_gathered_section(gathered, HEADRACE_F32, &data, &size, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_gathered_release(NULL, &error));
  EXPECT_OK(headrace_engine_close(engine, &error));
  EXPECT_OK(headrace_engine_close(engine, &error));
  EXPECT_CODE(headrace_engine_step(engine, NULL, NULL, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  EXPECT_CODE(headrace_engine_destroy(engine, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT(headrace_engine_interrupt(engine) == HEADRACE_INVALID_ARGUMENT);
}

/* ---- registration ---- */
static void registration(void) {
  headrace_engine* engine = new_engine(NULL);
  headrace_hyperparameters values;
  headrace_hyperparameter_set set = 0;
  headrace_parameter_spec specs[2];
  headrace_parameter_facts facts;
  headrace_parameter found[2], one;
  headrace_group group;
  const int64_t shape[2] = {3, 5};
  int64_t sizes[3];
  char text[64];
  size_t needed, count;
  uint32_t number;
  uint64_t bytes = 0;

  headrace_hyperparameters_init(&values);
  values.weight_decay = 0;
  EXPECT_OK(headrace_engine_add_hyperparameters(engine, &values, &set, &error));
  EXPECT(set == 1);
  EXPECT_OK(headrace_engine_set_default_hyperparameters(engine, &values, &error));
  values.beta1 = 2;
  EXPECT_CODE(headrace_engine_add_hyperparameters(engine, &values, &set, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_set_default_hyperparameters(engine, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);

  headrace_parameter_spec_init(&specs[0]);
  specs[0].name = "a";
  specs[0].shape = shape;
  specs[0].dimensions = 2;
  headrace_parameter_spec_init(&specs[1]);
  specs[1].name = "b";
  specs[1].dtype = HEADRACE_F32;
  specs[1].hyperparameters = 1;
  EXPECT_CODE(headrace_engine_add_group(engine, NULL, specs, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_add_group(engine, "g", NULL, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_add_group(engine, "g", specs, 0, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  specs[1].struct_size = 8;
  EXPECT_CODE(headrace_engine_add_group(engine, "g", specs, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  specs[1].struct_size = specs[0].struct_size;
  specs[1].dtype = 7;
  EXPECT_CODE(headrace_engine_add_group(engine, "g", specs, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  specs[1].dtype = HEADRACE_F32;
  specs[0].shape = NULL;
  EXPECT_CODE(headrace_engine_add_group(engine, "g", specs, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);
  specs[0].shape = shape;
  EXPECT_OK(headrace_engine_add_group(engine, "g", specs, 2, &group, &error));
  EXPECT_CODE(headrace_engine_add_group(engine, "g", specs, 2, &group, &error),
              HEADRACE_INVALID_ARGUMENT);

  EXPECT_OK(headrace_engine_group_count(engine, &number, &error));
  EXPECT(number == 1);
  EXPECT_OK(headrace_engine_parameter_count(engine, &number, &error));
  EXPECT(number == 2);
  EXPECT_OK(headrace_engine_group_parameters(engine, group, NULL, 0, &count, &error));
  EXPECT(count == 2);
  EXPECT_CODE(headrace_engine_group_parameters(engine, group, found, 1, &count, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_group_parameters(engine, group, found, 2, &count, &error));
  EXPECT_OK(headrace_engine_parameter_shape(engine, found[0], NULL, 0, &count, &error));
  EXPECT(count == 2);
  EXPECT_OK(headrace_engine_parameter_shape(engine, found[0], sizes, 2, &count, &error));
  EXPECT(count == 2 && sizes[0] == 3 && sizes[1] == 5);
  EXPECT_CODE(headrace_engine_parameter_shape(engine, found[0], sizes + 2, 1, &count, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT(sizes[2] == 3 && count == 2);
  EXPECT_OK(headrace_engine_parameter_shape(engine, found[1], sizes, 3, &count, &error));
  EXPECT(count == 0);
  EXPECT_OK(headrace_engine_parameter(engine, "g.b", &one, &error));
  EXPECT(one == found[1]);
  EXPECT_OK(headrace_engine_parameter_name(engine, one, text, sizeof text, &needed, &error));
  EXPECT(strcmp(text, "g.b") == 0 && needed == 4);
  EXPECT_CODE(headrace_engine_parameter_name(engine, one, text, 3, &needed, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT(strcmp(text, "g.") == 0 && needed == 4);
  EXPECT_OK(headrace_engine_group_name(engine, group, NULL, 0, &needed, &error));
  EXPECT(needed == 2);
  EXPECT_CODE(headrace_engine_group_name(engine, 9, NULL, 0, &needed, &error), HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_expect_repeated_gradients(engine, 9, &error), HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_expect_no_gradients(engine, 9, &error), HEADRACE_NOT_FOUND);
  EXPECT_OK(headrace_engine_expect_repeated_gradients(engine, group, &error));
  EXPECT_OK(headrace_engine_keep_bound(engine, group, &error));

  EXPECT_CODE(headrace_engine_section_size_bytes(engine, group, HEADRACE_F32, &bytes, &error),
              HEADRACE_WRONG_STATE);
  headrace_parameter_facts_init(&facts);
  EXPECT_OK(headrace_engine_parameter_facts(engine, found[0], &facts, &error));
  EXPECT(facts.elements == 15 && facts.size_bytes == 30 && facts.dtype == HEADRACE_BF16 &&
         facts.group == group && facts.section_offset_bytes == UINT64_MAX);
  EXPECT_CODE(headrace_engine_plan_json(engine, NULL, 0, &needed, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_load(engine, group, fill_ramp, NULL, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_CODE(headrace_engine_freeze(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_section_size_bytes(engine, group, HEADRACE_BF16, &bytes, &error));
  EXPECT(bytes >= 30 && bytes % 2 == 0);
  EXPECT_CODE(headrace_engine_section_size_bytes(engine, 9, HEADRACE_BF16, &bytes, &error),
              HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_section_size_bytes(engine, group, 9, &bytes, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_parameter_facts(engine, found[1], &facts, &error));
  EXPECT(facts.elements == 1 && facts.hyperparameters == 1 && facts.section_offset_bytes == 0);
  EXPECT_CODE(headrace_engine_parameter_facts(engine, 77, &facts, &error), HEADRACE_NOT_FOUND);
  EXPECT_OK(headrace_engine_plan_json(engine, message, 0, &needed, &error));
  EXPECT(needed > 100);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* ---- three steps, in memory and on a drive: the same bits ---- */
struct outcome {
  char parameters[HEADRACE_HASH_CAPACITY];
  char state[HEADRACE_HASH_CAPACITY];
};
static struct outcome train(headrace_engine* engine) {
  struct outcome outcome;
  headrace_gathered* gathered = NULL;
  headrace_step_options options;
  headrace_step_result result;
  headrace_gradient_piece piece;
  struct sums sums;
  static char json[8192];
  float gradient[kElements];
  size_t size_bytes = 0, needed;
  void* data = NULL;
  int step, i;
  const headrace_group group = add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_CODE(headrace_engine_gather(engine, group, 0, &gathered, &error), HEADRACE_WRONG_STATE);
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  headrace_step_options_init(&options);
  options.learning_rate = 0.01f;
  options.max_norm = 1;
  headrace_step_result_init(&result);
  for (step = 1; step <= 3; ++step) {
    EXPECT_OK(headrace_engine_gather(engine, group, 0, &gathered, &error));
    EXPECT_OK(headrace_gathered_bytes(gathered, 0, &data, &size_bytes, &error));
    EXPECT(size_bytes == sizeof gradient);
    for (i = 0; i < kElements; ++i) gradient[i] = 2 * ((const float*)data)[i];
    EXPECT_CODE(headrace_gathered_bytes(gathered, 5, &data, &size_bytes, &error),
                HEADRACE_NOT_FOUND);
    EXPECT_OK(headrace_gathered_section(gathered, HEADRACE_F32, &data, &size_bytes, &error));
    EXPECT(data != NULL && size_bytes >= sizeof gradient);
    EXPECT_CODE(headrace_gathered_section(gathered, 9, &data, &size_bytes, &error),
                HEADRACE_INVALID_ARGUMENT);
    EXPECT_OK(headrace_gathered_release(gathered, &error));
    EXPECT_CODE(headrace_engine_add_gradient(engine, 0, NULL, HEADRACE_F32, 0, &error),
                HEADRACE_INVALID_ARGUMENT);
    EXPECT_OK(headrace_engine_gradient_statistics(engine, 0, &piece, &error));
    EXPECT(piece.sum_squares == 0 && piece.non_finite == 0);
    EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
    EXPECT_OK(headrace_engine_gradient_statistics(engine, 0, &piece, &error));
    EXPECT_CODE(headrace_engine_gradient_statistics(engine, 5, &piece, &error), HEADRACE_NOT_FOUND);
    if (step == 2) { /* not a number: nothing is updated, and it can be dropped */
      EXPECT_OK(headrace_engine_discard_gradients(engine, &error));
      gradient[7] = (float)NAN;
      EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
      EXPECT_CODE(headrace_engine_step(engine, &options, &result, &error), HEADRACE_NOT_FINITE);
      EXPECT_WORDS("g.weight");
      EXPECT_OK(headrace_engine_gradient_statistics(engine, 0, &piece, &error));
      EXPECT(piece.non_finite == 1); /* kept with the gradients */
      EXPECT(result.step == 1);      /* a call that fails writes no result */
      EXPECT_OK(headrace_engine_discard_gradients(engine, &error));
      gradient[7] = 0;
      EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
      EXPECT_OK(headrace_engine_gradient_statistics(engine, 0, &piece, &error));
    }
    EXPECT_OK(headrace_engine_step(engine, &options, &result, &error));
    EXPECT(result.gradient_norm == sqrt(piece.sum_squares));
    EXPECT(result.step == (uint64_t)step && result.parameters_updated == 1 &&
           result.clip_factor < 1 && result.gradient_norm > 1);
  }
  result.struct_size = 4;
  EXPECT_CODE(headrace_engine_step(engine, &options, &result, &error), HEADRACE_INVALID_ARGUMENT);

  sums.next = 0, sums.sum = 0, sums.answer = HEADRACE_OK;
  EXPECT_OK(headrace_engine_store(engine, 0, HEADRACE_EXP_AVG_SQ, add_up, &sums, &error));
  EXPECT(sums.next == kElements && sums.sum > 0);
  sums.next = 0, sums.answer = HEADRACE_NO_SPACE;
  EXPECT_CODE(headrace_engine_store(engine, 0, HEADRACE_WEIGHT, add_up, &sums, &error),
              HEADRACE_NO_SPACE);
  sums.next = 0, sums.answer = 99;
  EXPECT_CODE(headrace_engine_store(engine, 0, HEADRACE_MASTER, add_up, &sums, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_store(engine, 0, 12, add_up, &sums, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_store(engine, 0, HEADRACE_WEIGHT, NULL, NULL, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_hash_parameters(engine, outcome.parameters, &error));
  EXPECT_OK(headrace_engine_hash_optimizer_state(engine, outcome.state, &error));
  EXPECT(strlen(outcome.parameters) == 32 && strlen(outcome.state) == 32);
  EXPECT_CODE(headrace_engine_hash_parameters(engine, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_engine_plan_json(engine, json, sizeof json, &needed, &error));
  EXPECT(strstr(json, "\"host_bytes\":") != NULL);
  EXPECT_OK(headrace_engine_stats_json(engine, json, sizeof json, &needed, &error));
  EXPECT(strstr(json, "\"gathers\":3") != NULL);
  return outcome;
}

static void trains_alike_in_memory_and_on_a_drive(const char* folder) {
  char text[8192];
  headrace_engine *memory = new_engine(NULL), *drive;
  struct outcome a, b;
  offloaded_settings(text, sizeof text, folder);
  drive = new_engine(text);
  a = train(memory); /* two engines at once */
  b = train(drive);
  EXPECT(strcmp(a.parameters, b.parameters) == 0);
  EXPECT(strcmp(a.state, b.state) == 0);
  EXPECT_OK(headrace_engine_destroy(memory, &error));
  EXPECT_OK(headrace_engine_destroy(drive, &error));
}

/* ---- resuming, and changes between steps ---- */
struct saved {
  float values[3][kElements]; /* master, exp_avg, exp_avg_sq */
  uint64_t steps;
};
struct stretch {
  float* values;
  headrace_code answer;
};
static headrace_code copy_out(void* context, uint64_t first, const void* values, size_t size) {
  memcpy((float*)context + first, values, size);
  return HEADRACE_OK;
}
static headrace_code copy_in(void* context, uint64_t first, void* values, size_t size) {
  const struct stretch* from = (const struct stretch*)context;
  memcpy(values, from->values + first, size);
  return from->answer;
}
static void save(headrace_engine* engine, struct saved* saved) {
  int c;
  for (c = 0; c < 3; ++c)
    EXPECT_OK(
        headrace_engine_store(engine, 0, HEADRACE_MASTER + c, copy_out, saved->values[c], &error));
  EXPECT_OK(headrace_engine_step_count(engine, 0, &saved->steps, &error));
}
static void restore(headrace_engine* engine, struct saved* saved) {
  struct stretch from;
  int c;
  from.answer = HEADRACE_OK;
  for (c = 0; c < 3; ++c) {
    from.values = saved->values[c];
    EXPECT_OK(headrace_engine_load_content(engine, 0, HEADRACE_MASTER + c, copy_in, &from, &error));
  }
  EXPECT_OK(headrace_engine_set_step_count(engine, 0, saved->steps, &error));
}
static headrace_engine* loaded_engine(const char* json) {
  headrace_engine* engine = new_engine(json);
  const headrace_group group = add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  return engine;
}
static void steps(headrace_engine* engine, int count) {
  float gradient[kElements];
  int i, e;
  for (i = 0; i < count; ++i) {
    for (e = 0; e < kElements; ++e) gradient[e] = (float)(e % 7) - 3.0f;
    EXPECT_OK(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
    EXPECT_OK(headrace_engine_step(engine, NULL, NULL, &error));
    if (i % 2 == 0) EXPECT_OK(headrace_engine_finish_step(engine, &error));
  }
}
static void expect_same(headrace_engine* a, headrace_engine* b) {
  char of_a[HEADRACE_HASH_CAPACITY], of_b[HEADRACE_HASH_CAPACITY];
  EXPECT_OK(headrace_engine_hash_optimizer_state(a, of_a, &error));
  EXPECT_OK(headrace_engine_hash_optimizer_state(b, of_b, &error));
  EXPECT(strcmp(of_a, of_b) == 0);
}
static void a_run_is_resumed_on_a_drive(const char* folder) {
  char text[8192];
  static struct saved saved, seen;
  headrace_engine *memory = loaded_engine(NULL), *drive;
  headrace_hyperparameters values;
  headrace_gathered* gathered = NULL;
  struct stretch from;
  uint64_t count = 99;
  offloaded_settings(text, sizeof text, folder);
  drive = loaded_engine(text);
  steps(memory, 3);
  save(memory, &saved);
  EXPECT(saved.steps == 3);
  restore(drive, &saved);
  save(drive, &seen);
  EXPECT(memcmp(&saved, &seen, sizeof saved) == 0);
  headrace_hyperparameters_init(&values);
  values.weight_decay = 0.25f;
  values.beta1 = 0.5f;
  EXPECT_OK(headrace_engine_set_hyperparameters(drive, 0, &values, &error));
  EXPECT_OK(headrace_engine_set_hyperparameters(memory, 0, &values, &error));
  steps(memory, 2);
  steps(drive, 2);
  expect_same(memory, drive);
  values.beta1 = 1;
  EXPECT_CODE(headrace_engine_set_hyperparameters(drive, 0, &values, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_set_hyperparameters(drive, 1, &values, &error), HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_step_count(drive, 7, &count, &error), HEADRACE_NOT_FOUND);
  EXPECT(count == 99);
  EXPECT_CODE(headrace_engine_set_step_count(drive, 7, 1, &error), HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_set_step_count(drive, 0, UINT64_MAX, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_load_content(drive, 7, HEADRACE_WEIGHT, copy_in, &from, &error),
              HEADRACE_NOT_FOUND);
  EXPECT_CODE(headrace_engine_load_content(drive, 0, 4, copy_in, &from, &error),
              HEADRACE_INVALID_ARGUMENT);
  /* A source that refuses its first stretch changes nothing; a leased group is refused. */
  from.values = saved.values[0];
  from.answer = HEADRACE_NO_SPACE;
  EXPECT_CODE(headrace_engine_load_content(drive, 0, HEADRACE_WEIGHT, copy_in, &from, &error),
              HEADRACE_NO_SPACE);
  EXPECT_WORDS("source");
  from.answer = 99;
  EXPECT_CODE(headrace_engine_load_content(drive, 0, HEADRACE_WEIGHT, copy_in, &from, &error),
              HEADRACE_INVALID_ARGUMENT);
  expect_same(memory, drive);
  from.answer = HEADRACE_OK;
  EXPECT_OK(headrace_engine_gather(drive, 0, 0, &gathered, &error));
  EXPECT_CODE(headrace_engine_load_content(drive, 0, HEADRACE_WEIGHT, copy_in, &from, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_WORDS("'g'");
  EXPECT_OK(headrace_gathered_release(gathered, &error));
  EXPECT_OK(headrace_engine_destroy(memory, &error));
  EXPECT_OK(headrace_engine_destroy(drive, &error));
}

static void a_fill_that_refuses_ends_the_load(void) {
  headrace_engine* engine = new_engine(NULL);
  const headrace_group group = add_vector(engine, "g");
  headrace_code answer = HEADRACE_IO;
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_CODE(headrace_engine_load(engine, group, refuse_fill, &answer, &error), HEADRACE_IO);
  EXPECT_WORDS("fill");
  EXPECT_CODE(headrace_engine_load(engine, group, NULL, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_engine_load(engine, 5, fill_ramp, NULL, &error), HEADRACE_NOT_FOUND);
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

static void plans_and_paths_are_refused(const char* folder) {
  char text[8192], path[2048];
  headrace_engine* engine = new_engine(
      "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}, "
      "\"headrace\": {\"host_budget_bytes\": 65536}}");
  add_vector(engine, "g");
  EXPECT_CODE(headrace_engine_freeze(engine, &error), HEADRACE_OUT_OF_BUDGET);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  snprintf(path, sizeof path, "%s/missing", folder);
  offloaded_settings(text, sizeof text, path);
  engine = new_engine(text);
  add_vector(engine, "g");
  EXPECT_CODE(headrace_engine_freeze(engine, &error), HEADRACE_NOT_FOUND);
  EXPECT(error.sys_errno == 2);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* ---- the host's own device, ranks and log ---- */
static void a_host_supplies_device_ranks_and_log(const char* folder) {
  char text[8192];
  struct host host;
  struct outcome in_host, in_memory;
  headrace_engine *engine = NULL, *memory = new_engine(NULL);
  headrace_engine_options options;
  headrace_device device = device_of(&host);
  headrace_collective collective = collective_of(&host);
  memset(&host, 0, sizeof host);
  offloaded_settings(text, sizeof text, folder);
  headrace_engine_options_init(&options);
  options.settings_json = text;
  options.device = &device;
  options.collective = &collective;
  options.log = host_log;
  options.log_context = &host;

  device.copy = NULL;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("device.copy");
  device.copy = host_copy;
  collective.rank = 1;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  collective.rank = 0;
  collective.exchange = NULL;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("collective.exchange");
  collective.exchange = host_exchange;

  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  in_host = train(engine);
  in_memory = train(memory);
  EXPECT(strcmp(in_host.parameters, in_memory.parameters) == 0);
  EXPECT(strcmp(in_host.state, in_memory.state) == 0);
  EXPECT(host.copies > 0 && host.records > 0 && host.accumulations > 0);
  EXPECT(host.lines > 0);                                              /* of wall_clock_breakdown */
  EXPECT_OK(headrace_engine_load(engine, 0, fill_ramp, NULL, &error)); /* no copy is left */
  host.answer = HEADRACE_UNSUPPORTED;
  {
    headrace_gathered* gathered = NULL;
    EXPECT_CODE(headrace_engine_gather(engine, 0, 0, &gathered, &error), HEADRACE_UNSUPPORTED);
    EXPECT_WORDS("device 'test': copy");
  }
  host.answer = HEADRACE_OK;
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  EXPECT_OK(headrace_engine_destroy(memory, &error));
}

/* Makes freeze log: at least these three settings that have no effect. */
static const char kWarned[] =
    "{\"wall_clock_breakdown\": true, \"dump_state\": true, \"memory_breakdown\": true}";
static headrace_engine* warned_engine(uint32_t kept_log_lines) {
  headrace_engine* engine = NULL;
  headrace_engine_options options;
  headrace_parameter_spec spec;
  headrace_group group;
  headrace_engine_options_init(&options);
  options.settings_json = kWarned;
  options.kept_log_lines = kept_log_lines;
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  headrace_parameter_spec_init(&spec);
  spec.name = "w";
  EXPECT_OK(headrace_engine_add_group(engine, "g", &spec, 1, &group, &error));
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  return engine;
}
static int taken_warnings;
static int taken_lines(headrace_engine* engine, char* first, size_t capacity) {
  char line[1024];
  int32_t level = -1;
  size_t needed = 1;
  int count = 0;
  first[0] = '\0';
  taken_warnings = 0;
  for (;;) {
    EXPECT_OK(headrace_engine_take_log(engine, &level, line, sizeof line, &needed, &error));
    if (needed == 0) return count;
    EXPECT(needed == strlen(line) + 1 && level >= HEADRACE_LOG_INFO);
    taken_warnings += level == HEADRACE_LOG_WARNING;
    if (count++ == 0) snprintf(first, capacity, "%s", line);
  }
}
static void lines_wait_until_they_are_taken(void) {
  char first[1024], line[1024];
  int32_t level = -1;
  size_t size = 0, needed = 0;
  int all;
  headrace_engine* engine = warned_engine(100);
  EXPECT_OK(headrace_engine_take_log(engine, &level, NULL, 0, &size, &error));
  EXPECT_CODE(headrace_engine_take_log(engine, &level, line, 4, &needed, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT(needed == size && strlen(line) == 3);
  EXPECT_OK(headrace_engine_close(engine, &error));
  all = taken_lines(engine, first, sizeof first); /* the sizes above took none, close neither */
  EXPECT(taken_warnings >= 3 && all >= taken_warnings && strncmp(first, line, 3) == 0 &&
         strlen(first) + 1 == size);
  EXPECT(taken_lines(engine, first, sizeof first) == 0);
  EXPECT_OK(headrace_engine_destroy(engine, &error));

  engine = warned_engine(1);
  EXPECT(taken_lines(engine, first, sizeof first) == 2);
  snprintf(line, sizeof line, "%d log lines are lost", all - 1);
  EXPECT(strncmp(first, line, strlen(line)) == 0);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}
static void kept_lines_are_refused(void) {
  char line[16];
  int32_t level = 0;
  size_t needed = 0;
  struct host host;
  headrace_engine* engine = new_engine(NULL);
  headrace_engine_options options;
  EXPECT_CODE(headrace_engine_take_log(engine, &level, line, sizeof line, &needed, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("kept_log_lines");
  EXPECT_OK(headrace_engine_destroy(engine, &error));
  headrace_engine_options_init(&options);
  options.kept_log_lines = 65537;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  options.kept_log_lines = 1;
  options.log = host_log;
  options.log_context = &host;
  EXPECT_CODE(headrace_engine_create(&options, &engine, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("both log and kept_log_lines");
}

static void accumulates_on_the_host(void) {
  const float source[4] = {1, 2, 3, (float)INFINITY};
  float sum[4] = {1, 1, 1, 1};
  headrace_gradient_piece pieces[2];
  headrace_accumulation work;
  memset(&work, 0, sizeof work);
  EXPECT_CODE(headrace_accumulate(NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_accumulate(&work, &error), HEADRACE_INVALID_ARGUMENT);
  work.struct_size = sizeof work;
  work.source = source;
  work.sum = sum;
  work.elements = 4;
  work.pieces = pieces;
  work.piece_elements = 2;
  work.first_piece_elements = 2;
  EXPECT_OK(headrace_accumulate(&work, &error));
  EXPECT(sum[0] == 2 && sum[2] == 4 && pieces[0].sum_squares == 13 && pieces[1].non_finite == 1);
  work.piece_elements = 0; /* all is one piece, and nobody asks how it was */
  work.first_piece_elements = 0;
  work.pieces = NULL;
  EXPECT_OK(headrace_accumulate(&work, &error));
  EXPECT(sum[0] == 3 && sum[2] == 7);
  work.sum_dtype = 5;
  EXPECT_CODE(headrace_accumulate(&work, &error), HEADRACE_INVALID_ARGUMENT);
  work.sum_dtype = HEADRACE_U8; /* no numbers */
  EXPECT_CODE(headrace_accumulate(&work, &error), HEADRACE_INVALID_ARGUMENT);
  work.sum_dtype = HEADRACE_F32;
  work.source_dtype = HEADRACE_U8;
  EXPECT_CODE(headrace_accumulate(&work, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT(sum[0] == 3 && sum[2] == 7);
}

/* ---- interrupt ---- */
static headrace_engine* interrupted;
static void on_alarm(int signal_number) {
  (void)signal_number;
  headrace_engine_interrupt(interrupted);
}
static void interrupts_from_a_signal_handler(void) {
  headrace_engine* engine = new_engine(NULL);
  headrace_gathered* gathered = NULL;
  const headrace_group group = add_vector(engine, "g");
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  interrupted = engine;
  signal(SIGALRM, on_alarm);
  raise(SIGALRM);
  EXPECT_CODE(headrace_engine_gather(engine, group, 0, &gathered, &error), HEADRACE_INTERRUPTED);
  EXPECT_OK(headrace_engine_destroy(engine, &error));
}

/* ---- a handle in use is not destroyed ---- */
struct waiting {
  headrace_engine* engine;
  pthread_barrier_t inside, done;
};
static headrace_code fill_slowly(void* context, headrace_parameter parameter, void* values,
                                 size_t size_bytes) {
  struct waiting* waiting = (struct waiting*)context;
  (void)parameter;
  memset(values, 0, size_bytes);
  pthread_barrier_wait(&waiting->inside);
  pthread_barrier_wait(&waiting->done);
  return HEADRACE_OK;
}
static void* load_slowly(void* argument) {
  struct waiting* waiting = (struct waiting*)argument;
  return (void*)(intptr_t)headrace_engine_load(waiting->engine, 0, fill_slowly, waiting, NULL);
}
static void an_engine_in_use_is_not_destroyed(void) {
  struct waiting waiting;
  pthread_t thread;
  void* code = NULL;
  waiting.engine = new_engine(NULL);
  add_vector(waiting.engine, "g");
  EXPECT_OK(headrace_engine_freeze(waiting.engine, &error));
  pthread_barrier_init(&waiting.inside, NULL, 2);
  pthread_barrier_init(&waiting.done, NULL, 2);
  EXPECT(pthread_create(&thread, NULL, load_slowly, &waiting) == 0);
  pthread_barrier_wait(&waiting.inside);
  EXPECT_CODE(headrace_engine_destroy(waiting.engine, &error), HEADRACE_WRONG_STATE);
  pthread_barrier_wait(&waiting.done);
  pthread_join(thread, &code);
  EXPECT((intptr_t)code == HEADRACE_OK);
  pthread_barrier_destroy(&waiting.inside);
  pthread_barrier_destroy(&waiting.done);
  EXPECT_OK(headrace_engine_destroy(waiting.engine, &error));
}

/* An engine that lends, and one that keeps its own: the same weights after two steps. */
static headrace_engine* engine_of_a_vector(int lends, float* weights, headrace_parameter* out) {
  headrace_engine* engine = new_engine(NULL);
  const headrace_group group = add_vector(engine, "g");
  EXPECT_OK(headrace_engine_parameter(engine, "g.weight", out, &error));
  if (lends) {
    EXPECT_OK(headrace_engine_expect_lent_weights(engine, group, &error));
    EXPECT_OK(headrace_engine_expect_lent_gradients(engine, group, &error));
  }
  EXPECT_OK(headrace_engine_freeze(engine, &error));
  if (lends) EXPECT_OK(headrace_engine_lend_weights(engine, *out, weights, &error));
  EXPECT_OK(headrace_engine_load(engine, group, fill_ramp, NULL, &error));
  return engine;
}
static void weights_and_gradients_are_lent(void) {
  static float weights[kElements], gradient[kElements];
  char hashes[2][HEADRACE_HASH_CAPACITY];
  headrace_parameter parameter = 0;
  int lends, i;
  for (i = 0; i < kElements; ++i) gradient[i] = (float)(i % 7) - 3.0f;
  for (lends = 0; lends < 2; ++lends) {
    headrace_engine* engine = engine_of_a_vector(lends, weights, &parameter);
    for (i = 0; i < 2; ++i) {
      if (lends) {
        EXPECT_OK(headrace_engine_lend_gradient(engine, parameter, gradient, HEADRACE_F32, &error));
      } else {
        EXPECT_OK(
            headrace_engine_add_gradient(engine, parameter, gradient, HEADRACE_F32, 0, &error));
      }
      EXPECT_OK(headrace_engine_step(engine, NULL, NULL, &error));
    }
    EXPECT_OK(headrace_engine_hash_parameters(engine, hashes[lends], &error));
    if (lends) {
      EXPECT(weights[0] != 0.0f); /* written where they are */
      EXPECT_CODE(headrace_engine_lend_weights(engine, parameter, NULL, &error),
                  HEADRACE_INVALID_ARGUMENT);
      EXPECT_WORDS("is null");
    }
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  }
  EXPECT(strcmp(hashes[0], hashes[1]) == 0);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  headrace_error_init(&error, message, sizeof message);
  version_and_codes();
  errors_are_the_callers();
  create_refuses(folder);
  handles_are_never_followed();
  registration();
  polls_frozen_parameters_and_writes();
  trains_alike_in_memory_and_on_a_drive(folder);
  a_run_is_resumed_on_a_drive(folder);
  a_fill_that_refuses_ends_the_load();
  plans_and_paths_are_refused(folder);
  a_host_supplies_device_ranks_and_log(folder);
  lines_wait_until_they_are_taken();
  kept_lines_are_refused();
  accumulates_on_the_host();
  weights_and_gradients_are_lent();
  interrupts_from_a_signal_handler();
  an_engine_in_use_is_not_destroyed();
  if (failures > 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures > 0;
}
