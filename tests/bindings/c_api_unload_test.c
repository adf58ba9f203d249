/* SPDX-License-Identifier: Apache-2.0
 * c_api_unload_test.c LIBRARY FOLDER: the shared library by dlopen, an engine made, trained and
 * destroyed, and unloaded again, twenty times: nothing of it is left in the process. */
#include "headrace/c.h"

#include <dlfcn.h>

#include "c_proc.h"

static int failures = 0;
#define MUST(condition)                                                             \
  do {                                                                              \
    if (!(condition)) {                                                             \
      ++failures;                                                                   \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
    }                                                                               \
  } while (0)

static headrace_code fill_ones(void* context, headrace_parameter parameter, void* values,
                               size_t size_bytes) {
  size_t i;
  (void)context, (void)parameter;
  for (i = 0; i < size_bytes / sizeof(float); ++i) ((float*)values)[i] = 1;
  return HEADRACE_OK;
}
static void drop(void* context, int32_t level, const char* line) {
  (void)context, (void)level, (void)line;
}

/* A function of the library by its type in the header. */
#define LOAD(name) __typeof__(&name) const name##_ = (__typeof__(&name))dlsym(library, #name)

static void train(void* library, const char* folder) {
  LOAD(headrace_engine_create);
  LOAD(headrace_engine_add_group);
  LOAD(headrace_engine_freeze);
  LOAD(headrace_engine_load);
  LOAD(headrace_engine_add_gradient);
  LOAD(headrace_engine_step);
  LOAD(headrace_engine_destroy);
  static const float gradient[4] = {1, 2, 3, 4};
  const int64_t shape[1] = {4};
  char text[8192];
  headrace_engine* engine = NULL;
  headrace_engine_options options;
  headrace_parameter_spec spec;
  headrace_group group;
  snprintf(text, sizeof text,
           "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
           "\"%s\"}}, \"headrace\": {\"allow_memory_backed\": true}}",
           folder);
  headrace_engine_options_init(&options);
  options.settings_json = text;
  options.log = drop;
  headrace_parameter_spec_init(&spec);
  spec.name = "w";
  spec.dtype = HEADRACE_F32;
  spec.shape = shape;
  spec.dimensions = 1;
  MUST(headrace_engine_create_(&options, &engine, NULL) == HEADRACE_OK);
  MUST(headrace_engine_add_group_(engine, "g", &spec, 1, &group, NULL) == HEADRACE_OK);
  MUST(headrace_engine_freeze_(engine, NULL) == HEADRACE_OK);
  MUST(headrace_engine_load_(engine, group, fill_ones, NULL, NULL) == HEADRACE_OK);
  MUST(headrace_engine_add_gradient_(engine, 0, gradient, HEADRACE_F32, 0, NULL) == HEADRACE_OK);
  MUST(headrace_engine_step_(engine, NULL, NULL, NULL) == HEADRACE_OK);
  MUST(headrace_engine_destroy_(engine, NULL) == HEADRACE_OK);
}

int main(int argc, char** argv) {
  struct held before, after;
  int i;
  if (argc < 3) return 2;
  memset(&before, 0, sizeof before);
  for (i = 0; i < 20; ++i) {
    void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    train(library, argv[2]);
    after = what_is_held(argv[2], 3);
    MUST(after.of_library > 0);
    MUST(dlclose(library) == 0);
    after = what_is_held(argv[2], 3);
    MUST(after.of_library == 0 && after.threads == 3);
    if (i == 4) before = after;
    if (i > 4) {
      MUST(after.files == before.files && after.folder_entries == before.folder_entries);
      MUST(after.mappings <= before.mappings + 4);
    }
  }
  if (failures > 0) fprintf(stderr, "%d mappings, %d before\n", after.mappings, before.mappings);
  return failures > 0;
}
