/* SPDX-License-Identifier: Apache-2.0
 * headrace/c.h: the engine in C. headrace/engine.hpp documents each call under the same name: its
 * effect, its cost, and the state after an error. This header documents only the differences. It
 * compiles as C99 and C++11.
 *
 * Conventions
 *  1. Every call that can fail returns a headrace_code; HEADRACE_OK is 0. Nothing throws, nothing
 *     aborts, errno is not used.
 *  2. Such a call takes a headrace_error as its last argument (headrace_engine_interrupt() has
 *     none). It may be NULL. The caller owns it and the memory of its text. Each call overwrites
 *     it, so each thread needs its own.
 *  3. Results go to out_ arguments, written only when HEADRACE_OK is returned. None may be NULL
 *     unless said.
 *  4. A struct that the caller fills is set by its headrace_..._init() first, which knows its
 *     struct_size and the defaults; a table of functions is zeroed, then given its struct_size.
 *     Fields are only ever added at the end: a program and a library of different minor age
 *     understand each other by struct_size, which is 4096 at most. Structs are copied: what they
 *     point at may go when the call returns, unless said.
 *  5. Handles are numbers in pointers, never addresses. One that was destroyed, never made, or is
 *     of another kind gives HEADRACE_INVALID_ARGUMENT. A process has room for 256
 *     engines and 8192 headrace_gathered; one more is HEADRACE_OUT_OF_BUDGET. Groups, parameters
 *     and hyperparameter sets are small integers, counted from 0 in the order they were added;
 *     one that an engine never gave out is HEADRACE_NOT_FOUND.
 *  6. Text that goes in ends with NUL, is UTF-8, and is copied. A name has 1024 bytes at most. Text
 *     that comes out is written to (buffer, capacity); *out_needed is its size with the NUL. With
 *     capacity 0 only that is written; with too little room the call ends in
 *     HEADRACE_INVALID_ARGUMENT and writes both it and what fits. Lists likewise, in entries.
 *  7. Callbacks take a void* context and run on the thread of the call that received them, unless
 *     said. They return HEADRACE_OK, or a code that ends that call with this code. They must not
 *     throw or longjmp. They may make the calls on the engine that convention 8 allows beside that
 *     call; all others are refused.
 *  8. Threads: different engines share nothing. Of one engine
 *     - questions (counts, names, facts, shapes, plan, stats, and all calls on a
 *       headrace_gathered) may come at any time but during registration, freeze and close;
 *     - headrace_engine_gather() and headrace_engine_add_gradient() may come from several threads
 *       at once, but only beside each other and questions;
 *     - every other call may come only beside questions.
 *     A call that comes at another time, and destroy while any call is under way, is
 *     HEADRACE_WRONG_STATE and does nothing.
 *  9. Numbers of enums are never used again for something else. An unknown one is refused.
 * 10. Compatible means: same major version, and while that is 0 the same minor.
 *     headrace_engine_create() compares, and ends in HEADRACE_UNSUPPORTED.
 * 11. A forked child may make engines of its own. Every call on its parent's is
 *     HEADRACE_WRONG_STATE there.
 * 12. The shared library may be unloaded when every engine is destroyed.
 *
 * After an error an engine is as before the call and the call may be repeated, unless said here or
 * in headrace/engine.hpp. HEADRACE_FAILED and HEADRACE_INTERRUPTED are final: after them an engine
 * only takes questions, release, close and destroy.
 */
#ifndef HEADRACE_C_H
#define HEADRACE_C_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */
/* 1,000,000 major + 1,000 minor + patch of this header. */
#define HEADRACE_C_VERSION 1000
/* The linked library's, likewise, and as "0.1.0". */
uint32_t headrace_version(void);
const char* headrace_version_text(void);

/* ---- errors ---- */
typedef int32_t headrace_code;
enum {
  HEADRACE_OK = 0,
  HEADRACE_INVALID_ARGUMENT = 1,
  HEADRACE_NOT_FOUND = 2,
  HEADRACE_WRONG_STATE = 3,
  HEADRACE_SETTINGS = 4,
  HEADRACE_OUT_OF_BUDGET = 5,
  HEADRACE_IO = 6,
  HEADRACE_NO_SPACE = 7,
  HEADRACE_CORRUPT = 8,
  HEADRACE_IO_STALLED = 9,
  HEADRACE_NOT_FINITE = 10,
  HEADRACE_PEER_LOST = 11,
  HEADRACE_INTERRUPTED = 12,
  HEADRACE_UNSUPPORTED = 13,
  HEADRACE_FAILED = 14
};
/* "kIo" and so on; "unknown code" for another number. Never NULL. */
const char* headrace_code_name(headrace_code code);
/* Whether an error with this code, before the first step, says that the request cannot be met as
 * given: 1, or 0. HEADRACE_IO is 0: there sys_errno tells a path from a drive. */
int32_t headrace_is_refusal(headrace_code code);

typedef struct headrace_error {
  uint32_t struct_size;
  headrace_code code;      /* of the last call that was given this */
  int32_t sys_errno;       /* the errno behind it; 0 if there is none */
  char* message;           /* yours; may be NULL: cause, consequence, what helps */
  size_t message_capacity; /* bytes at `message`; a longer text is cut at a whole character */
  size_t message_needed;   /* bytes the whole text takes, with its NUL; 0 after HEADRACE_OK */
} headrace_error;
static inline void headrace_error_init(headrace_error* error, char* message, size_t capacity) {
  error->struct_size = (uint32_t)sizeof *error;
  error->code = HEADRACE_OK;
  error->sys_errno = 0;
  error->message = message;
  error->message_capacity = capacity;
  error->message_needed = 0;
}

/* ---- a parameter ---- */
typedef int32_t headrace_dtype;
enum { HEADRACE_F32 = 0, HEADRACE_BF16 = 1, HEADRACE_F16 = 2 };
typedef uint32_t headrace_group;
typedef uint32_t headrace_parameter;
typedef uint32_t headrace_hyperparameter_set; /* 0 is the default set */

typedef struct headrace_parameter_spec {
  uint32_t struct_size;
  headrace_dtype dtype;
  const char* name;     /* within its group; the full name is "<group>.<name>" */
  const int64_t* shape; /* elements, row-major, each at least 1; NULL with dimensions 0: one */
  uint32_t dimensions;  /* entries at `shape`, 64 at most */
  headrace_hyperparameter_set hyperparameters;
  uint32_t frozen; /* not 0: read and never updated, with neither gradient nor state */
  uint32_t reserved;
} headrace_parameter_spec;
static inline void headrace_parameter_spec_init(headrace_parameter_spec* spec) {
  spec->struct_size = (uint32_t)sizeof *spec;
  spec->dtype = HEADRACE_BF16;
  spec->name = NULL;
  spec->shape = NULL;
  spec->dimensions = 0;
  spec->hyperparameters = 0;
  spec->frozen = 0;
  spec->reserved = 0;
}

typedef struct headrace_hyperparameters {
  uint32_t struct_size;
  float learning_rate_scale;
  float beta1;
  float beta2;
  float eps;
  float weight_decay;
  float momentum;
  float dampening;
  float learning_rate_decay;
  uint32_t nesterov;        /* 0 or 1 */
  uint32_t bias_correction; /* 0 or 1 */
  uint32_t maximize;        /* 0 or 1 */
} headrace_hyperparameters;
static inline void headrace_hyperparameters_init(headrace_hyperparameters* values) {
  values->struct_size = (uint32_t)sizeof *values;
  values->learning_rate_scale = 1.0f;
  values->beta1 = 0.9f;
  values->beta2 = 0.999f;
  values->eps = 1e-8f;
  values->weight_decay = 0.01f;
  values->momentum = 0.0f;
  values->dampening = 0.0f;
  values->learning_rate_decay = 0.0f;
  values->nesterov = 0;
  values->bias_correction = 1;
  values->maximize = 0;
}

/* ---- seams that a host may supply ---- */
typedef uintptr_t headrace_stream; /* 0: the device's default stream */
typedef uint64_t headrace_event;   /* 0: never recorded */

typedef struct headrace_gradient_piece {
  double sum_squares;
  uint64_t non_finite;
} headrace_gradient_piece;
/* headrace/device.hpp, Accumulation. The library fills it; struct_size is the library's. */
typedef struct headrace_accumulation {
  uint32_t struct_size;
  headrace_dtype source_dtype;
  const void* source; /* device memory */
  headrace_dtype sum_dtype;
  int32_t overwrite; /* 0: add to the values at `sum` */
  void* sum;         /* host memory; device memory with several ranks */
  uint64_t elements;
  headrace_gradient_piece* pieces; /* host memory, one per piece; NULL: nothing is reported */
  uint64_t first_piece_elements;   /* 0: piece_elements */
  uint64_t piece_elements;         /* 0: the rest is one piece */
} headrace_accumulation;
/* Does it on the calling thread, for a device whose memory the CPU can read. Needs no engine; may
 * be called from anywhere, also from headrace_device.accumulate. */
headrace_code headrace_accumulate(const headrace_accumulation* work, headrace_error* error);

/* headrace/device.hpp as a table. Calls come from any engine thread and from the threads that call
 * the engine, several at once; of one stream one at a time. A function that returns a code may
 * return any but HEADRACE_OK to fail the call that needed it. All functions are required. `name` is
 * copied. */
typedef struct headrace_device {
  uint32_t struct_size;
  int32_t shares_host_memory;
  void* context;
  const char* name;
  void* (*allocate)(void* context, size_t size_bytes); /* 256-byte aligned, zero-filled, or NULL;
                                                          what is not aligned is given back */
  void (*deallocate)(void* context, void* data, size_t size_bytes);
  headrace_code (*create_stream)(void* context, headrace_stream* out_stream);
  void (*destroy_stream)(void* context, headrace_stream stream);
  headrace_code (*copy)(void* context, headrace_stream stream, void* target, const void* source,
                        size_t size_bytes);
  headrace_code (*fill_zero)(void* context, headrace_stream stream, void* target,
                             size_t size_bytes);
  headrace_code (*accumulate)(void* context, headrace_stream stream,
                              const headrace_accumulation* work); /* copy *work */
  /* Calls function(argument) once, from any thread, when the stream has come here. */
  headrace_code (*notify)(void* context, headrace_stream stream, void (*function)(void* argument),
                          void* argument);
  headrace_code (*record)(void* context, headrace_stream stream, headrace_event* out_event);
  headrace_code (*wait)(void* context, headrace_stream stream, headrace_event event);
  headrace_code (*synchronize)(void* context, headrace_stream stream);
} headrace_device;

/* headrace/cuda.hpp, CudaOptions: an NVIDIA GPU of the library's own, in place of a
 * headrace_device. A headrace_stream is a cudaStream_t then, any of the program's. */
typedef struct headrace_cuda {
  uint32_t struct_size;
  int32_t ordinal; /* among the GPUs that CUDA_VISIBLE_DEVICES shows */
  /* Threads that add up gradients in host memory; 0: a quarter of the CPUs, 1 to 8. */
  uint32_t host_threads;
  /* Device memory, 256-byte aligned, usable on every stream at once, or NULL; both functions NULL:
   * CUDA's own. */
  void* allocator_context;
  void* (*allocate)(void* context, size_t size_bytes);
  void (*deallocate)(void* context, void* data, size_t size_bytes);
} headrace_cuda;
static inline void headrace_cuda_init(headrace_cuda* cuda) {
  cuda->struct_size = (uint32_t)sizeof *cuda;
  cuda->ordinal = 0;
  cuda->host_threads = 0;
  cuda->allocator_context = NULL;
  cuda->allocate = NULL;
  cuda->deallocate = NULL;
}
/* Why there is no GPU that can be used, and what would help; an empty text: there is one. */
headrace_code headrace_cuda_missing(char* buffer, size_t capacity, size_t* out_needed,
                                    headrace_error* error);

/* Memory of the device, or of the host where both are one. */
typedef struct headrace_piece {
  void* data;
  size_t size_bytes;
} headrace_piece;

/* headrace/collective.hpp as a table, all of it required. Calls come from the threads that call the
 * engine. `what` and `sequence` name the call, equal on every rank; `what` is valid during the
 * call.
 * abort(): this rank failed; the other ranks' calls have to end in a code. */
typedef struct headrace_collective {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  void* context;
  headrace_code (*all_gather)(void* context, uint64_t sequence, const char* what,
                              headrace_stream stream, void* whole, size_t size_bytes);
  /* give[r] goes to rank r, and has the same size on every rank. Rank r finds the other ranks'
   * pieces at `take`, in rank order, each of give[r].size_bytes. give[rank] is not read. */
  headrace_code (*all_to_all)(void* context, uint64_t sequence, const char* what,
                              headrace_stream stream, const headrace_piece* give, void* take);
  /* Rank r's `size_bytes` go to all[r * size_bytes] on every rank. */
  headrace_code (*exchange)(void* context, uint64_t sequence, const char* what, const void* mine,
                            size_t size_bytes, void* all);
  void (*abort)(void* context, const char* why);
} headrace_collective;

/* ---- an engine ---- */
typedef struct headrace_engine headrace_engine;
typedef struct headrace_gathered headrace_gathered;

enum { HEADRACE_LOG_INFO = 0, HEADRACE_LOG_WARNING = 1, HEADRACE_LOG_ERROR = 2 };

typedef struct headrace_engine_options {
  uint32_t struct_size;
  uint32_t header_version;      /* set by init */
  const char* settings_json;    /* text as docs/settings.md describes; or */
  const char* settings_file;    /* a file of it; both NULL: defaults, all in memory */
  const char* const* overrides; /* "a.b=value" laid over it */
  size_t override_count;
  /* NULL: warnings and errors to stderr. One line without its end; any engine thread, one at a
   * time. */
  void (*log)(void* context, int32_t level, const char* line);
  void* log_context;
  const headrace_device* device; /* NULL: the CPU. Copied; its context outlives the engine. */
  const headrace_collective* collective; /* NULL: one rank. Likewise. */
  const headrace_cuda* cuda; /* NULL: none. Copied; its context outlives the engine. Not with
                                `device`. HEADRACE_UNSUPPORTED where there is no such GPU. */
  /* NULL: never. Asked about ten times a second by the thread whose call waits; not 0 ends that
   * call alone, in HEADRACE_INTERRUPTED, and the engine is whole (EngineOptions::poll of
   * headrace/engine.hpp). For Ctrl-C; headrace_engine_interrupt() ends the engine. */
  int32_t (*poll)(void* context);
  void* poll_context;
} headrace_engine_options;
static inline void headrace_engine_options_init(headrace_engine_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->header_version = HEADRACE_C_VERSION;
  options->settings_json = NULL;
  options->settings_file = NULL;
  options->overrides = NULL;
  options->override_count = 0;
  options->log = NULL;
  options->log_context = NULL;
  options->device = NULL;
  options->collective = NULL;
  options->cuda = NULL;
  options->poll = NULL;
  options->poll_context = NULL;
}

/* `options` may be NULL. Costs nothing yet: freeze allocates. */
headrace_code headrace_engine_create(const headrace_engine_options* options,
                                     headrace_engine** out_engine, headrace_error* error);
/* Closes and forgets the handle. HEADRACE_WRONG_STATE, and nothing happened, while a
 * headrace_gathered of it is open or a call is under way. After any other error the handle is still
 * there: call it again. NULL does nothing. */
headrace_code headrace_engine_destroy(headrace_engine* engine, headrace_error* error);

/* Registration, before freeze. A refused call adds nothing. The default set applies to parameters
 * whose `hyperparameters` is 0, whenever they were added. */
headrace_code headrace_engine_set_default_hyperparameters(headrace_engine* engine,
                                                          const headrace_hyperparameters* values,
                                                          headrace_error* error);
headrace_code headrace_engine_add_hyperparameters(headrace_engine* engine,
                                                  const headrace_hyperparameters* values,
                                                  headrace_hyperparameter_set* out_set,
                                                  headrace_error* error);
/* `parameters` is an array of `count` structs of one struct_size. All of it is copied. */
headrace_code headrace_engine_add_group(headrace_engine* engine, const char* name,
                                        const headrace_parameter_spec* parameters, size_t count,
                                        headrace_group* out_group, headrace_error* error);
/* All of the group's parameters are frozen. */
headrace_code headrace_engine_expect_no_gradients(headrace_engine* engine, headrace_group group,
                                                  headrace_error* error);
headrace_code headrace_engine_expect_repeated_gradients(headrace_engine* engine,
                                                        headrace_group group,
                                                        headrace_error* error);
headrace_code headrace_engine_keep_bound(headrace_engine* engine, headrace_group group,
                                         headrace_error* error);
headrace_code headrace_engine_freeze(headrace_engine* engine, headrace_error* error);

/* The registered groups and parameters. */
headrace_code headrace_engine_group_count(headrace_engine* engine, uint32_t* out_count,
                                          headrace_error* error);
headrace_code headrace_engine_parameter_count(headrace_engine* engine, uint32_t* out_count,
                                              headrace_error* error);
headrace_code headrace_engine_group_name(headrace_engine* engine, headrace_group group,
                                         char* buffer, size_t capacity, size_t* out_needed,
                                         headrace_error* error);
/* The group's parameters in the order they were given; a list (convention 6). */
headrace_code headrace_engine_group_parameters(headrace_engine* engine, headrace_group group,
                                               headrace_parameter* buffer, size_t capacity,
                                               size_t* out_count, headrace_error* error);
/* By full name. */
headrace_code headrace_engine_parameter(headrace_engine* engine, const char* full_name,
                                        headrace_parameter* out_parameter, headrace_error* error);
headrace_code headrace_engine_parameter_name(headrace_engine* engine, headrace_parameter parameter,
                                             char* buffer, size_t capacity, size_t* out_needed,
                                             headrace_error* error);
typedef struct headrace_parameter_facts {
  uint32_t struct_size;
  headrace_dtype dtype;
  headrace_group group;
  headrace_hyperparameter_set hyperparameters;
  uint64_t elements;
  uint64_t size_bytes;
  /* From the start of headrace_gathered_section() of its dtype; UINT64_MAX before freeze. */
  uint64_t section_offset_bytes;
} headrace_parameter_facts;
static inline void headrace_parameter_facts_init(headrace_parameter_facts* facts) {
  facts->struct_size = (uint32_t)sizeof *facts;
}
headrace_code headrace_engine_parameter_facts(headrace_engine* engine, headrace_parameter parameter,
                                              headrace_parameter_facts* out_facts,
                                              headrace_error* error);
/* The shape it was added with; a list (convention 6). No entries: one element. */
headrace_code headrace_engine_parameter_shape(headrace_engine* engine, headrace_parameter parameter,
                                              int64_t* buffer, size_t capacity,
                                              size_t* out_dimensions, headrace_error* error);
/* After freeze: bytes of headrace_gathered_section() of this dtype; 0: the group has none. */
headrace_code headrace_engine_section_size_bytes(headrace_engine* engine, headrace_group group,
                                                 headrace_dtype dtype, uint64_t* out_size_bytes,
                                                 headrace_error* error);
/* The settings of the engine, defaults and overrides included, by the keys of docs/settings.md:
 * text that headrace_engine_create() takes again. bf16.enabled and fp16.enabled give the dtype that
 * a file asks parameters to have: with both false it is f32, as in DeepSpeed. Without bf16.enabled
 * it asks for none. */
headrace_code headrace_engine_settings_json(headrace_engine* engine, char* buffer, size_t capacity,
                                            size_t* out_needed, headrace_error* error);
/* The plan, after freeze: {"schema_version":1,"rows":[{"what","tier",
 * "bytes"}],...} with the names of PlanReport (headrace/stats.hpp). */
headrace_code headrace_engine_plan_json(headrace_engine* engine, char* buffer, size_t capacity,
                                        size_t* out_needed, headrace_error* error);

/* Values. `values` is one whole parameter in its dtype, row-major, host memory, to be written; it
 * holds zeros, and is the engine's again when the function returns. */
typedef headrace_code (*headrace_fill)(void* context, headrace_parameter parameter, void* values,
                                       size_t size_bytes);
/* Calls `fill` for each parameter of the group in their order. After an error the group has no
 * values until it was loaded whole. */
headrace_code headrace_engine_load(headrace_engine* engine, headrace_group group,
                                   headrace_fill fill, void* context, headrace_error* error);
typedef int32_t headrace_content;
enum {
  HEADRACE_WEIGHT = 0, /* in the parameter's dtype; the others are f32 */
  HEADRACE_MASTER = 1,
  HEADRACE_EXP_AVG = 2,
  HEADRACE_EXP_AVG_SQ = 3
};
/* A stretch of one parameter's elements, in rising order, host memory, until it returns. */
typedef headrace_code (*headrace_sink)(void* context, uint64_t first_element, const void* values,
                                       size_t size_bytes);
headrace_code headrace_engine_store(headrace_engine* engine, headrace_parameter parameter,
                                    headrace_content content, headrace_sink sink, void* context,
                                    headrace_error* error);
/* A stretch of one parameter's elements, in rising order, host memory, to be written; it holds the
 * present ones, and is the engine's again when the function returns. */
typedef headrace_code (*headrace_source)(void* context, uint64_t first_element, void* values,
                                         size_t size_bytes);
/* The mirror of store: replaces one content of one parameter of a group that was loaded, and
 * nothing else. headrace/engine.hpp, under load(), says what an error leaves. */
headrace_code headrace_engine_load_content(headrace_engine* engine, headrace_parameter parameter,
                                           headrace_content content, headrace_source source,
                                           void* context, headrace_error* error);
/* Says that something wrote to the group's weights while they were gathered: gather, store, hashes
 * and step are HEADRACE_WRONG_STATE with `cause` until the whole group was loaded. */
headrace_code headrace_engine_mark_written(headrace_engine* engine, headrace_group group,
                                           const char* cause, headrace_error* error);
/* Updates that a parameter has had; 2^48 at most. For resuming, set after load of its group. */
headrace_code headrace_engine_step_count(headrace_engine* engine, headrace_parameter parameter,
                                         uint64_t* out_steps, headrace_error* error);
headrace_code headrace_engine_set_step_count(headrace_engine* engine, headrace_parameter parameter,
                                             uint64_t steps, headrace_error* error);
/* 32 hexadecimal digits and a NUL: docs/swap_file.md, "Hashes". */
#define HEADRACE_HASH_CAPACITY 33
headrace_code headrace_engine_hash_parameters(headrace_engine* engine,
                                              char out_hash[HEADRACE_HASH_CAPACITY],
                                              headrace_error* error);
headrace_code headrace_engine_hash_optimizer_state(headrace_engine* engine,
                                                   char out_hash[HEADRACE_HASH_CAPACITY],
                                                   headrace_error* error);

/* A step. Groups are loaded first. */
headrace_code headrace_engine_gather(headrace_engine* engine, headrace_group group,
                                     headrace_stream stream, headrace_gathered** out_gathered,
                                     headrace_error* error);
/* Device memory, read-only, until the release. */
headrace_code headrace_gathered_bytes(headrace_gathered* gathered, headrace_parameter parameter,
                                      void** out_data, size_t* out_size_bytes,
                                      headrace_error* error);
/* All the group's parameters of `dtype` as one buffer, each at its section_offset_bytes; NULL and 0
 * where there are none. */
headrace_code headrace_gathered_section(headrace_gathered* gathered, headrace_dtype dtype,
                                        void** out_data, size_t* out_size_bytes,
                                        headrace_error* error);
/* Gives the lease back and forgets the handle. NULL does nothing. It waits for another thread's
 * registration, freeze, close or destroy, which ends in a refusal while the lease is open. */
headrace_code headrace_gathered_release(headrace_gathered* gathered, headrace_error* error);
/* `gradient` is the whole parameter's, row-major, of any dtype, in device memory. The engine has
 * read it when `stream` passes this point, so on the CPU when the call returns. */
headrace_code headrace_engine_add_gradient(headrace_engine* engine, headrace_parameter parameter,
                                           const void* gradient, headrace_dtype dtype,
                                           headrace_stream stream, headrace_error* error);
headrace_code headrace_engine_discard_gradients(headrace_engine* engine, headrace_error* error);
/* New values for a set; the next step uses them. Before freeze and between steps. */
headrace_code headrace_engine_set_hyperparameters(headrace_engine* engine,
                                                  headrace_hyperparameter_set set,
                                                  const headrace_hyperparameters* values,
                                                  headrace_error* error);

typedef struct headrace_step_options {
  uint32_t struct_size;
  float learning_rate;
  float gradient_scale; /* every gradient is multiplied by it, e.g. 1 / micro-batches */
  float max_norm;       /* of all gradients together, scaled; 0: no clipping */
} headrace_step_options;
static inline void headrace_step_options_init(headrace_step_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->learning_rate = 1e-3f;
  options->gradient_scale = 1.0f;
  options->max_norm = 0.0f;
}
typedef struct headrace_step_result {
  uint32_t struct_size;
  uint64_t step;        /* 1 for the first */
  double gradient_norm; /* scaled, before clipping */
  double clip_factor;   /* 1: nothing was clipped */
  uint64_t parameters_updated;
  uint64_t parameters_left_alone;
  uint64_t skipped; /* 1: a gradient was not finite, and headrace.non_finite is "skip" */
  uint64_t non_finite_gradients;
} headrace_step_result;
static inline void headrace_step_result_init(headrace_step_result* result) {
  result->struct_size = (uint32_t)sizeof *result;
}
/* Where updates are deferred (headrace.update_mode), it returns before they are done: a later call
 * waits for them, and may end in their error. `options` may be NULL: the defaults of init.
 * `out_result` may be NULL. HEADRACE_NOT_FINITE: nothing was updated, and the gradients are kept
 * until discard. */
headrace_code headrace_engine_step(headrace_engine* engine, const headrace_step_options* options,
                                   headrace_step_result* out_result, headrace_error* error);

/* Engine::finish_step(): returns when no update that a step has deferred is pending. */
headrace_code headrace_engine_finish_step(headrace_engine* engine, headrace_error* error);

/* {"schema_version":1,...} with the names of Stats (headrace/stats.hpp). */
headrace_code headrace_engine_stats_json(headrace_engine* engine, char* buffer, size_t capacity,
                                         size_t* out_needed, headrace_error* error);
/* From any thread and from a signal handler, at any time. Makes the call that is waiting end in
 * HEADRACE_INTERRUPTED soon, and every later one but questions, release, close and destroy. There
 * is no way back. The waiting call first waits for a callback under way. */
headrace_code headrace_engine_interrupt(headrace_engine* engine);
/* Threads, files and memory are gone when it returns; the handle stays until destroy. */
headrace_code headrace_engine_close(headrace_engine* engine, headrace_error* error);

#ifdef __cplusplus
}
#endif
#endif
