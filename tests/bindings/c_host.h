/* SPDX-License-Identifier: Apache-2.0
 * c_host.h: what the C tests share: expectations, a group of one vector, and a host's device, ranks
 * and log as tables of functions. */
#ifndef HEADRACE_TESTS_BINDINGS_C_HOST_H
#define HEADRACE_TESTS_BINDINGS_C_HOST_H
#include "headrace/c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
static char message[8192];
static headrace_error error;

#define EXPECT(condition)                                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      ++failures;                                                                         \
      fprintf(stderr, "%s:%d: %s does not hold (last message: %s)\n", __FILE__, __LINE__, \
              #condition, message);                                                       \
    }                                                                                     \
  } while (0)
/* The call returns `wanted`, and words come with everything but HEADRACE_OK. */
#define EXPECT_CODE(call, wanted)                                                                  \
  do {                                                                                             \
    const headrace_code code_ = (call);                                                            \
    if (code_ != (wanted) || error.code != code_ || (code_ != HEADRACE_OK) != (message[0] != 0)) { \
      ++failures;                                                                                  \
      fprintf(stderr, "%s:%d: %s\n  gave %s (error.code %s), wanted %s; message: %s\n", __FILE__,  \
              __LINE__, #call, headrace_code_name(code_), headrace_code_name(error.code),          \
              headrace_code_name(wanted), message);                                                \
    }                                                                                              \
  } while (0)
#define EXPECT_OK(call) EXPECT_CODE(call, HEADRACE_OK)
#define EXPECT_WORDS(words) EXPECT(strstr(message, words) != NULL)

enum { kElements = 1000 };

static inline headrace_code fill_ramp(void* context, headrace_parameter parameter, void* values,
                                      size_t size_bytes) {
  float* out = (float*)values;
  size_t i;
  (void)context;
  for (i = 0; i < size_bytes / sizeof(float); ++i) out[i] = (float)i / 100.0f + (float)parameter;
  return HEADRACE_OK;
}
static inline headrace_engine* new_engine(const char* json) {
  headrace_engine* engine = NULL;
  headrace_engine_options options;
  headrace_engine_options_init(&options);
  options.settings_json = json;
  EXPECT_OK(headrace_engine_create(&options, &engine, &error));
  return engine;
}
static inline headrace_parameter_spec vector_spec(const int64_t* shape) {
  headrace_parameter_spec spec;
  headrace_parameter_spec_init(&spec);
  spec.name = "weight";
  spec.dtype = HEADRACE_F32;
  spec.shape = shape;
  spec.dimensions = 1;
  return spec;
}
static inline headrace_group add_vector(headrace_engine* engine, const char* name) {
  const int64_t shape[1] = {kElements};
  const headrace_parameter_spec spec = vector_spec(shape);
  headrace_group group = 0;
  EXPECT_OK(headrace_engine_add_group(engine, name, &spec, 1, &group, &error));
  return group;
}

static inline void offloaded_settings(char* text, size_t capacity, const char* folder) {
  snprintf(text, capacity,
           "{\"wall_clock_breakdown\": true, \"zero_optimization\": {\"offload_optimizer\": "
           "{\"device\": \"nvme\", \"nvme_path\": "
           "\"%s\"}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}, "
           "\"headrace\": {\"allow_memory_backed\": true}}",
           folder, folder);
}

/* ---- a host's device, ranks and log, which do everything at once ---- */
struct host {
  int copies, records, accumulations, gathers, exchanges, aborted, lines;
  headrace_code answer; /* of copy */
};
static inline void* host_allocate(void* context, size_t size_bytes) {
  void* data = NULL;
  (void)context;
  if (posix_memalign(&data, 256, size_bytes) != 0) return NULL;
  return memset(data, 0, size_bytes);
}
static inline void host_deallocate(void* context, void* data, size_t size_bytes) {
  (void)context, (void)size_bytes;
  free(data);
}
static inline headrace_code host_create_stream(void* context, headrace_stream* out) {
  (void)context;
  *out = 1;
  return HEADRACE_OK;
}
static inline void host_destroy_stream(void* context, headrace_stream stream) {
  (void)context, (void)stream;
}
static inline headrace_code host_copy(void* context, headrace_stream stream, void* target,
                                      const void* source, size_t size_bytes) {
  struct host* host = (struct host*)context;
  (void)stream;
  __atomic_add_fetch(&host->copies, 1, __ATOMIC_RELAXED);
  memcpy(target, source, size_bytes);
  return host->answer;
}
static inline headrace_code host_fill_zero(void* context, headrace_stream stream, void* target,
                                           size_t size_bytes) {
  (void)context, (void)stream;
  memset(target, 0, size_bytes);
  return HEADRACE_OK;
}
static inline headrace_code host_accumulate(void* context, headrace_stream stream,
                                            const headrace_accumulation* work) {
  struct host* host = (struct host*)context;
  (void)stream;
  __atomic_add_fetch(&host->accumulations, 1, __ATOMIC_RELAXED);
  return headrace_accumulate(work, NULL);
}
static inline headrace_code host_notify(void* context, headrace_stream stream,
                                        void (*function)(void*), void* argument) {
  (void)context, (void)stream;
  function(argument);
  return HEADRACE_OK;
}
static inline headrace_code host_record(void* context, headrace_stream stream,
                                        headrace_event* out) {
  struct host* host = (struct host*)context;
  (void)stream;
  *out = (headrace_event)__atomic_add_fetch(&host->records, 1, __ATOMIC_RELAXED);
  return HEADRACE_OK;
}
static inline headrace_code host_wait(void* context, headrace_stream stream, headrace_event event) {
  (void)context, (void)stream;
  return event == 0 ? HEADRACE_WRONG_STATE : HEADRACE_OK;
}
static inline headrace_code host_synchronize(void* context, headrace_stream stream) {
  (void)context, (void)stream;
  return HEADRACE_OK;
}
static inline headrace_code host_all_gather(void* context, uint64_t sequence, const char* what,
                                            headrace_stream stream, const headrace_piece* whole) {
  (void)sequence, (void)what, (void)stream, (void)whole;
  ++((struct host*)context)->gathers;
  return HEADRACE_OK;
}
static inline headrace_code host_all_to_all(void* context, uint64_t sequence, const char* what,
                                            headrace_stream stream, const headrace_piece* give,
                                            void* take) {
  (void)context, (void)sequence, (void)what, (void)stream, (void)give, (void)take;
  return HEADRACE_OK;
}
/* Of one rank. */
static inline headrace_code host_exchange(void* context, uint64_t sequence, const char* what,
                                          const void* mine, size_t size_bytes, void* all) {
  (void)sequence, (void)what;
  ++((struct host*)context)->exchanges;
  if (size_bytes > 0) memcpy(all, mine, size_bytes);
  return HEADRACE_OK;
}
static inline void host_abort(void* context, const char* why) {
  (void)why;
  ++((struct host*)context)->aborted;
}
static inline void host_log(void* context, int32_t level, const char* line) {
  EXPECT(level >= HEADRACE_LOG_INFO && level <= HEADRACE_LOG_ERROR);
  EXPECT(strchr(line, '\n') == NULL);
  ++((struct host*)context)->lines;
}

static inline headrace_device device_of(struct host* host) {
  headrace_device table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.context = host;
  table.name = "test";
  table.allocate = host_allocate;
  table.deallocate = host_deallocate;
  table.create_stream = host_create_stream;
  table.destroy_stream = host_destroy_stream;
  table.copy = host_copy;
  table.fill_zero = host_fill_zero;
  table.accumulate = host_accumulate;
  table.notify = host_notify;
  table.record = host_record;
  table.wait = host_wait;
  table.synchronize = host_synchronize;
  return table;
}
static inline headrace_collective collective_of(struct host* host) {
  headrace_collective table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.world_size = 1;
  table.context = host;
  table.all_gather = host_all_gather;
  table.all_to_all = host_all_to_all;
  table.exchange = host_exchange;
  table.abort = host_abort;
  return table;
}
#endif
