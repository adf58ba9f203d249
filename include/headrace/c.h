/* SPDX-License-Identifier: Apache-2.0
 * headrace/c.h: the engine in C. headrace/engine.hpp documents each call under the same name: its
 * effect, its cost, and the state after an error. This header documents only the differences. It
 * compiles as C99 and C++11.
 *
 * Conventions
 *  1. Every call that can fail returns a headrace_code; HEADRACE_OK is 0. Nothing throws, nothing
 *     aborts, and errno is not used.
 *  2. Such a call takes a headrace_error as its last argument (headrace_engine_interrupt() has
 *     none). The argument may be NULL. The caller owns the struct and the memory of its text. Each
 *     call overwrites the struct, so each thread needs its own.
 *  3. Results go to out_ arguments, which a call writes only if it returns HEADRACE_OK. None may
 *     be NULL unless its comment says so.
 *  4. Before you fill a struct, initialise it with its headrace_..._init(), which sets struct_size
 *     and the defaults. A table of functions has no such call: zero the table, and set its
 *     struct_size. Later versions add fields only at the end, and struct_size (at most 4096) shows
 *     which fields there are. So a program and a library of different minor versions work together.
 *     Calls copy structs. Unless a comment says otherwise, the data behind a struct's pointers may
 *     be freed after the call.
 *  5. Handles are numbers stored in pointers, not addresses. A handle that was destroyed, was never
 *     created, or is of another kind gives HEADRACE_INVALID_ARGUMENT. A process may have 256
 *     engines, 256 optimizers, 256 headrace_io, 256 headrace_background_save and 8192
 *     headrace_gathered; one more gives HEADRACE_OUT_OF_BUDGET.
 *     Groups, parameters and hyperparameter sets are small integers, counted from 0 in the order in
 *     which they were added; one that the engine never returned gives HEADRACE_NOT_FOUND.
 *  6. Input text is UTF-8, ends with NUL, and is copied. A name has at most 1024 bytes. Output text
 *     is written to (buffer, capacity), and its size, including the NUL, to *out_needed. With
 *     capacity 0, a call writes only the size. If the buffer is too small, the call returns
 *     HEADRACE_INVALID_ARGUMENT, and writes the size and as much text as fits. Lists work in the
 *     same way, with sizes counted in entries.
 *  7. Callbacks take a void* context and run on the thread of the call that received them, unless a
 *     comment says otherwise. They return HEADRACE_OK, or a code with which that call then fails.
 *     They must not throw or longjmp. They may call the engine only as convention 8 allows
 *     during that call. All other calls fail.
 *  8. Threads: different engines share nothing. For one engine:
 *     - Queries may run at any time except during registration, freeze and close. The queries are
 *       counts, names, facts, shapes, plan, stats, and all calls on a headrace_gathered.
 *     - headrace_engine_gather(), headrace_engine_add_gradient() and
 *       headrace_engine_lend_gradient() may run on several threads at once. Besides each other,
 *       only queries may run at the same time.
 *     - Every other call may run only together with queries.
 *     A call made at any other time returns HEADRACE_WRONG_STATE and does nothing. So does
 *     headrace_engine_destroy() while any call runs.
 *  9. The numbers of enums are never reused with another meaning. An unknown number is an error.
 * 10. Compatible versions have the same major number, and while that is 0 the same minor number.
 *     headrace_engine_create() compares the header's version with the library's, and returns
 *     HEADRACE_UNSUPPORTED if they are not compatible.
 * 11. A forked child may create its own engines. There, every call on its parent's engines returns
 *     HEADRACE_WRONG_STATE.
 * 12. The shared library may be unloaded when every engine, optimizer, headrace_io and
 *     headrace_background_save is destroyed.
 *
 * After an error, an engine is as it was before the call, and the call may be repeated, unless a
 * comment here or in headrace/engine.hpp says otherwise. HEADRACE_FAILED and HEADRACE_INTERRUPTED
 * are final: after them, only queries, release, close and destroy work.
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
/* The version of the linked library, in the same form and as text such as "0.1.0". */
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
/* "kIo" and so on; "unknown code" for an unknown number. Never NULL. */
const char* headrace_code_name(headrace_code code);
/* For an error with this code before the first step: 1 if the request cannot be met as given, else
 * 0. The result is 0 for HEADRACE_IO, where only the error's sys_errno shows whether the path or
 * the drive is at fault. */
int32_t headrace_is_refusal(headrace_code code);

typedef struct headrace_error {
  uint32_t struct_size;
  headrace_code code;      /* of the last call with this struct */
  int32_t sys_errno;       /* the errno of the cause; 0: none */
  char* message;           /* your buffer, or NULL; gets cause, consequence and fix */
  size_t message_capacity; /* bytes at `message`; a longer text is cut at a whole character */
  size_t message_needed;   /* bytes of the whole text with its NUL; 0 after HEADRACE_OK */
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
/* U8: bytes of any meaning, such as a quantised weight; only of frozen parameters. */
enum { HEADRACE_F32 = 0, HEADRACE_BF16 = 1, HEADRACE_F16 = 2, HEADRACE_U8 = 3 };
typedef uint32_t headrace_group;
typedef uint32_t headrace_parameter;
typedef uint32_t headrace_hyperparameter_set; /* 0 is the default set */

typedef struct headrace_parameter_spec {
  uint32_t struct_size;
  headrace_dtype dtype;
  const char* name;     /* within its group; the full name is "<group>.<name>" */
  const int64_t* shape; /* row-major sizes, each at least 1; NULL if dimensions is 0: one element */
  uint32_t dimensions;  /* entries at `shape`, 64 at most */
  headrace_hyperparameter_set hyperparameters;
  uint32_t frozen; /* not 0: read but never updated, with neither gradient nor state */
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

/* ---- seams that a host program may supply ---- */
typedef uintptr_t headrace_stream; /* 0: the device's default stream */
typedef uint64_t headrace_event;   /* 0: never recorded */

typedef struct headrace_gradient_piece {
  double sum_squares;
  uint64_t non_finite;
} headrace_gradient_piece;
/* Accumulation in headrace/device.hpp. The library fills it in, with its own struct_size. */
typedef struct headrace_accumulation {
  uint32_t struct_size;
  headrace_dtype source_dtype;
  const void* source; /* device memory */
  headrace_dtype sum_dtype;
  int32_t overwrite; /* 0: add to the values at `sum` */
  void* sum;         /* host memory; device memory with several ranks */
  uint64_t elements;
  headrace_gradient_piece* pieces; /* host memory, one per piece; NULL: report nothing */
  uint64_t first_piece_elements;   /* 0: piece_elements */
  uint64_t piece_elements;         /* 0: the rest is one piece */
} headrace_accumulation;
/* Does `work` on the calling thread, for a device whose memory the CPU can read. Needs no engine,
 * and may be called from anywhere, including from headrace_device.accumulate. */
headrace_code headrace_accumulate(const headrace_accumulation* work, headrace_error* error);

/* The interface of headrace/device.hpp as a table of functions. The engine's threads and the
 * threads that call the engine call these functions: several at once, but only one at a time for
 * each stream. If a function returns a code other than HEADRACE_OK, the call that needed it fails.
 * All functions are required. `name` is copied. */
typedef struct headrace_device {
  uint32_t struct_size;
  int32_t shares_host_memory;
  void* context;
  const char* name;
  void* (*allocate)(void* context, size_t size_bytes); /* 256-byte aligned, zero-filled, or NULL;
                                                          deallocated at once if not aligned */
  void (*deallocate)(void* context, void* data, size_t size_bytes);
  headrace_code (*create_stream)(void* context, headrace_stream* out_stream);
  void (*destroy_stream)(void* context, headrace_stream stream);
  headrace_code (*copy)(void* context, headrace_stream stream, void* target, const void* source,
                        size_t size_bytes);
  headrace_code (*fill_zero)(void* context, headrace_stream stream, void* target,
                             size_t size_bytes);
  headrace_code (*accumulate)(void* context, headrace_stream stream,
                              const headrace_accumulation* work); /* must copy *work */
  /* Calls function(argument) once, on any thread, when the stream has reached this point. */
  headrace_code (*notify)(void* context, headrace_stream stream, void (*function)(void* argument),
                          void* argument);
  headrace_code (*record)(void* context, headrace_stream stream, headrace_event* out_event);
  headrace_code (*wait)(void* context, headrace_stream stream, headrace_event event);
  headrace_code (*synchronize)(void* context, headrace_stream stream);
} headrace_device;

/* CudaOptions in headrace/cuda.hpp: the library's own device for an NVIDIA GPU, instead of a
 * headrace_device. A headrace_stream is then any cudaStream_t of the program. */
typedef struct headrace_cuda {
  uint32_t struct_size;
  int32_t ordinal; /* among the GPUs that CUDA_VISIBLE_DEVICES shows */
  /* Threads that add up gradients in host memory; 0: a quarter of the CPUs, but 1 to 8. */
  uint32_t host_threads;
  /* Allocates device memory, 256-byte aligned and usable on every stream at once, or returns NULL.
   * Both functions NULL: CUDA's own allocator is used. */
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
/* Returns why there is no usable GPU, and how to fix that. An empty text: there is one. */
headrace_code headrace_cuda_missing(char* buffer, size_t capacity, size_t* out_needed,
                                    headrace_error* error);

/* Memory of the device, or of the host if they share it. */
typedef struct headrace_piece {
  void* data;
  size_t size_bytes;
} headrace_piece;

/* The interface of headrace/collective.hpp as a table of functions; all but the last are required.
 * The threads that call the engine call these functions, and if `takes_any_thread`, so does one of
 * the engine; one call at a time. `what` and `sequence` name the call, and are equal on every rank;
 * `what` is valid during the call.
 * abort(): this rank has failed; the other ranks' calls must return an error. */
typedef struct headrace_collective {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  void* context;
  /* whole[r] is rank r's piece, world_size of them, of any sizes, which are the same on every rank.
   * They lie one after the other, and this rank's own is already in place. */
  headrace_code (*all_gather)(void* context, uint64_t sequence, const char* what,
                              headrace_stream stream, const headrace_piece* whole);
  /* give[r] goes to rank r, and has the same size on every rank. Rank r finds the other ranks'
   * pieces at `take`, in rank order, each of give[r].size_bytes. The call ignores give[rank]. */
  headrace_code (*all_to_all)(void* context, uint64_t sequence, const char* what,
                              headrace_stream stream, const headrace_piece* give, void* take);
  /* Rank r's `size_bytes` bytes go to all[r * size_bytes] on every rank. */
  headrace_code (*exchange)(void* context, uint64_t sequence, const char* what, const void* mine,
                            size_t size_bytes, void* all);
  void (*abort)(void* context, const char* why);
  int32_t takes_any_thread; /* not 0: the ranks can join and reduce ahead of their trainers' calls
                               (headrace.rank_agreement). The same on every rank. */
  /* give[r] goes to rank r, and take[r] comes from rank r, which gives as many bytes: world_size
   * pieces each, of any sizes, also 0. The call ignores this rank's own. No rank gives a larger
   * piece than `largest_bytes`. NULL: zero_optimization.zero_hpz_partition_size and
   * headrace.hierarchical_reduce_ranks are refused. */
  headrace_code (*all_to_all_v)(void* context, uint64_t sequence, const char* what,
                                headrace_stream stream, const headrace_piece* give,
                                const headrace_piece* take, uint64_t largest_bytes);
} headrace_collective;

/* ---- an engine ---- */
typedef struct headrace_engine headrace_engine;
typedef struct headrace_gathered headrace_gathered;

enum { HEADRACE_LOG_INFO = 0, HEADRACE_LOG_WARNING = 1, HEADRACE_LOG_ERROR = 2 };

typedef struct headrace_engine_options {
  uint32_t struct_size;
  uint32_t header_version;      /* set by init */
  const char* settings_json;    /* text as docs/settings.md describes it; or */
  const char* settings_file;    /* a file of such text; both NULL: defaults, all in memory */
  const char* const* overrides; /* "a.b=value"; each overrides one key */
  size_t override_count;
  /* Called with one line, without a newline, on any engine thread, but only one call at a time.
   * NULL: warnings and errors go to stderr. */
  void (*log)(void* context, int32_t level, const char* line);
  void* log_context;
  const headrace_device* device; /* NULL: the CPU. Copied; its context must outlive the engine. */
  const headrace_collective* collective; /* NULL: one rank. Copied like `device`. */
  const headrace_cuda* cuda; /* NULL: none. Copied; its context must outlive the engine. Not with
                                `device`. HEADRACE_UNSUPPORTED if there is no such GPU. */
  /* A thread that waits in a call calls this function about ten times a second. If it returns a
   * value other than 0, the waiting call alone returns HEADRACE_INTERRUPTED, and the engine remains
   * usable (EngineOptions::poll). Use it for Ctrl-C; headrace_engine_interrupt() would end the
   * engine. May be NULL. */
  int32_t (*poll)(void* context);
  void* poll_context;
  /* Not 0: the engine keeps up to so many log lines (65536 at most) until
   * headrace_engine_take_log() takes them, and calls no function for them. Use it if `log` cannot
   * run on the engine's threads. Not with `log`. */
  uint32_t kept_log_lines;
  uint32_t reserved;
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
  options->kept_log_lines = 0;
  options->reserved = 0;
}

/* `options` may be NULL. This call costs little: only headrace_engine_freeze() allocates. */
headrace_code headrace_engine_create(const headrace_engine_options* options,
                                     headrace_engine** out_engine, headrace_error* error);
/* Closes the engine and removes the handle. Returns HEADRACE_WRONG_STATE, and does nothing, while a
 * headrace_gathered of the engine is open or a call runs. After any other error the handle remains
 * valid, so make this call again. Does nothing for NULL. */
headrace_code headrace_engine_destroy(headrace_engine* engine, headrace_error* error);

/* Registration, before freeze. A failed call adds nothing. The default set applies to parameters
 * whose `hyperparameters` is 0, whenever they were added. */
headrace_code headrace_engine_set_default_hyperparameters(headrace_engine* engine,
                                                          const headrace_hyperparameters* values,
                                                          headrace_error* error);
headrace_code headrace_engine_add_hyperparameters(headrace_engine* engine,
                                                  const headrace_hyperparameters* values,
                                                  headrace_hyperparameter_set* out_set,
                                                  headrace_error* error);
/* `parameters` is an array of `count` structs, all with the same struct_size. Everything is
 * copied. */
headrace_code headrace_engine_add_group(headrace_engine* engine, const char* name,
                                        const headrace_parameter_spec* parameters, size_t count,
                                        headrace_group* out_group, headrace_error* error);
/* Freezes all of the group's parameters. */
headrace_code headrace_engine_expect_no_gradients(headrace_engine* engine, headrace_group group,
                                                  headrace_error* error);
headrace_code headrace_engine_expect_repeated_gradients(headrace_engine* engine,
                                                        headrace_group group,
                                                        headrace_error* error);
headrace_code headrace_engine_keep_bound(headrace_engine* engine, headrace_group group,
                                         headrace_error* error);
/* The group's gradients, or its f32 weights, stay in memory of the caller (headrace/engine.hpp,
 * expect_lent_gradients() and expect_lent_weights()): the engine allocates none for them. For one
 * rank whose device is the CPU. */
headrace_code headrace_engine_expect_lent_gradients(headrace_engine* engine, headrace_group group,
                                                    headrace_error* error);
headrace_code headrace_engine_expect_lent_weights(headrace_engine* engine, headrace_group group,
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
/* The group's parameters, in the order in which they were given; a list (convention 6). */
headrace_code headrace_engine_group_parameters(headrace_engine* engine, headrace_group group,
                                               headrace_parameter* buffer, size_t capacity,
                                               size_t* out_count, headrace_error* error);
/* Finds a parameter by its full name. */
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
  /* From the start of headrace_gathered_section() for this dtype; UINT64_MAX before freeze. */
  uint64_t section_offset_bytes;
} headrace_parameter_facts;
static inline void headrace_parameter_facts_init(headrace_parameter_facts* facts) {
  facts->struct_size = (uint32_t)sizeof *facts;
}
headrace_code headrace_engine_parameter_facts(headrace_engine* engine, headrace_parameter parameter,
                                              headrace_parameter_facts* out_facts,
                                              headrace_error* error);
/* The shape with which the parameter was added; a list (convention 6). No entries: one element. */
headrace_code headrace_engine_parameter_shape(headrace_engine* engine, headrace_parameter parameter,
                                              int64_t* buffer, size_t capacity,
                                              size_t* out_dimensions, headrace_error* error);
/* After freeze: size of headrace_gathered_section() for this dtype; 0: the group has no such
 * parameters. */
headrace_code headrace_engine_section_size_bytes(headrace_engine* engine, headrace_group group,
                                                 headrace_dtype dtype, uint64_t* out_size_bytes,
                                                 headrace_error* error);
/* The settings of the engine, including defaults and overrides, under the keys of docs/settings.md,
 * as text for headrace_engine_create(). bf16.enabled and fp16.enabled give the parameter dtype that
 * a file asks for: f32 if both are false, as in DeepSpeed. If bf16.enabled is missing, the file
 * leaves the dtype to the trainer. */
headrace_code headrace_engine_settings_json(headrace_engine* engine, char* buffer, size_t capacity,
                                            size_t* out_needed, headrace_error* error);
/* The plan, after freeze: {"schema_version":1,"rows":[{"what","tier",
 * "bytes"}],...} with the names of PlanReport (headrace/stats.hpp). */
headrace_code headrace_engine_plan_json(headrace_engine* engine, char* buffer, size_t capacity,
                                        size_t* out_needed, headrace_error* error);

/* Gives the address of a parameter's weights, row-major f32 values in host memory, of a group that
 * lends them: before its load, and again whenever they have moved. The caller owns the memory.
 * Load, store, step, the hashes and checkpoints read and write it. */
headrace_code headrace_engine_lend_weights(headrace_engine* engine, headrace_parameter parameter,
                                           void* values, headrace_error* error);
/* Values. The function writes one whole parameter in its dtype, row-major, to `values`. This host
 * memory holds zeros beforehand, and belongs to the engine again when the function returns. If the
 * group lends its weights, it is the lent memory, with the values that it has. */
typedef headrace_code (*headrace_fill)(void* context, headrace_parameter parameter, void* values,
                                       size_t size_bytes);
/* Calls `fill` for each parameter of the group, in order. After an error the group has no values
 * until a load succeeds. */
headrace_code headrace_engine_load(headrace_engine* engine, headrace_group group,
                                   headrace_fill fill, void* context, headrace_error* error);
/* Like headrace_fill, but for those elements of each parameter that lie in this rank's shard, from
 * `first_element` on. So W ranks together read a model once, and not W times. */
typedef headrace_code (*headrace_fill_shard)(void* context, headrace_parameter parameter,
                                             uint64_t first_element, void* values,
                                             size_t size_bytes);
headrace_code headrace_engine_load_shard(headrace_engine* engine, headrace_group group,
                                         headrace_fill_shard fill, void* context,
                                         headrace_error* error);
typedef int32_t headrace_content;
enum {
  HEADRACE_WEIGHT = 0, /* in the parameter's dtype; the other contents are f32 */
  HEADRACE_MASTER = 1,
  HEADRACE_EXP_AVG = 2,
  HEADRACE_EXP_AVG_SQ = 3
};
/* Receives one range of a parameter's elements per call, in rising order. `values` is valid until
 * the function returns. */
typedef headrace_code (*headrace_sink)(void* context, uint64_t first_element, const void* values,
                                       size_t size_bytes);
headrace_code headrace_engine_store(headrace_engine* engine, headrace_parameter parameter,
                                    headrace_content content, headrace_sink sink, void* context,
                                    headrace_error* error);
/* Writes one range of a parameter's elements per call, in rising order, to `values`. This host
 * memory holds the current values beforehand, and belongs to the engine again when the function
 * returns. */
typedef headrace_code (*headrace_source)(void* context, uint64_t first_element, void* values,
                                         size_t size_bytes);
/* The inverse of headrace_engine_store(). Replaces one kind of content of one parameter of a loaded
 * group, and nothing else. headrace/engine.hpp describes, under load(), the state after an
 * error. */
headrace_code headrace_engine_load_content(headrace_engine* engine, headrace_parameter parameter,
                                           headrace_content content, headrace_source source,
                                           void* context, headrace_error* error);
/* Tells the engine that something wrote to the group's weights while they were gathered. The calls
 * for gather, store, hashes and step then return HEADRACE_WRONG_STATE with `cause`, until the whole
 * group is loaded. */
headrace_code headrace_engine_mark_written(headrace_engine* engine, headrace_group group,
                                           const char* cause, headrace_error* error);
/* The number of updates that a parameter has had; at most 2^48. To resume a run, load the
 * parameter's group first, and then set the number. */
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

/* A step. Load all groups first. */
headrace_code headrace_engine_gather(headrace_engine* engine, headrace_group group,
                                     headrace_stream stream, headrace_gathered** out_gathered,
                                     headrace_error* error);
/* Device memory, read-only, valid until the release. */
headrace_code headrace_gathered_bytes(headrace_gathered* gathered, headrace_parameter parameter,
                                      void** out_data, size_t* out_size_bytes,
                                      headrace_error* error);
/* All the group's parameters of `dtype` as one buffer, each at its section_offset_bytes; NULL and 0
 * if there are none. */
headrace_code headrace_gathered_section(headrace_gathered* gathered, headrace_dtype dtype,
                                        void** out_data, size_t* out_size_bytes,
                                        headrace_error* error);
/* Gives the lease back and removes the handle. Does nothing for NULL. May have to wait for a
 * registration, freeze, close or destroy on another thread. That call fails, because the lease is
 * open. */
headrace_code headrace_gathered_release(headrace_gathered* gathered, headrace_error* error);
/* `gradient` covers the whole parameter, row-major, in any dtype, in device memory. The engine has
 * read it when `stream` passes this point: on the CPU, when the call returns. */
headrace_code headrace_engine_add_gradient(headrace_engine* engine, headrace_parameter parameter,
                                           const void* gradient, headrace_dtype dtype,
                                           headrace_stream stream, headrace_error* error);
/* The same for a group that lends its gradients. `gradient`, in host memory, must keep its values
 * until the step or headrace_engine_discard_gradients() has returned. */
headrace_code headrace_engine_lend_gradient(headrace_engine* engine, headrace_parameter parameter,
                                            const void* gradient, headrace_dtype dtype,
                                            headrace_error* error);
headrace_code headrace_engine_discard_gradients(headrace_engine* engine, headrace_error* error);
/* Engine::exchange(): with several ranks, `all` receives the `size_bytes` bytes of each, in rank
 * order. `all_size_bytes` is `size_bytes` times the number of ranks. */
headrace_code headrace_engine_exchange(headrace_engine* engine, const void* mine, size_t size_bytes,
                                       void* all, size_t all_size_bytes, headrace_error* error);
headrace_code headrace_engine_gradient_statistics(headrace_engine* engine,
                                                  headrace_parameter parameter,
                                                  headrace_gradient_piece* out_statistics,
                                                  headrace_error* error);
/* Replaces the values of a set, before freeze or between steps. The next step uses the new ones. */
headrace_code headrace_engine_set_hyperparameters(headrace_engine* engine,
                                                  headrace_hyperparameter_set set,
                                                  const headrace_hyperparameters* values,
                                                  headrace_error* error);

typedef struct headrace_step_options {
  uint32_t struct_size;
  float learning_rate;
  float gradient_scale; /* multiplies every gradient, e.g. 1 / micro-batches */
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
/* If updates are deferred (headrace.update_mode), this call returns before they are done. A later
 * call waits for them, and may fail with their error. If `options` is NULL, the defaults of
 * headrace_step_options_init() apply. `out_result` may be NULL. HEADRACE_NOT_FINITE: nothing was
 * updated, and the gradients are kept until headrace_engine_discard_gradients(). */
headrace_code headrace_engine_step(headrace_engine* engine, const headrace_step_options* options,
                                   headrace_step_result* out_result, headrace_error* error);

/* Engine::finish_step(): waits until no deferred update is pending. */
headrace_code headrace_engine_finish_step(headrace_engine* engine, headrace_error* error);

/* Durable epochs (headrace.durable; docs/durable.md). */
typedef struct headrace_resumed {
  uint32_t struct_size;
  uint32_t resumed; /* 1: all values are in place, load nothing; 0: there is no store, or it is
                       new, and the values have to be loaded */
  uint64_t step;    /* steps made: headrace_step_result.step of the last one */
  uint64_t skipped; /* steps skipped because of their gradients */
  uint64_t trainer_state_bytes; /* of headrace_engine_resumed_trainer_state() */
} headrace_resumed;
static inline void headrace_resumed_init(headrace_resumed* resumed) {
  resumed->struct_size = (uint32_t)sizeof *resumed;
}
/* After freeze: where the engine resumes. A query; its answer never changes. */
headrace_code headrace_engine_resumed(headrace_engine* engine, headrace_resumed* out_resumed,
                                      headrace_error* error);
/* The bytes given to headrace_engine_set_trainer_state() for that step; a list (convention 6) of
 * bytes. */
headrace_code headrace_engine_resumed_trainer_state(headrace_engine* engine, void* buffer,
                                                    size_t capacity, size_t* out_size_bytes,
                                                    headrace_error* error);
/* Call it before a step, with anything else that the trainer needs in order to continue after that
 * step. If neither a step nor headrace_engine_commit() follows, the bytes are not committed. The
 * bytes are copied. `state` may be NULL if size_bytes is 0. If there are more than
 * headrace.trainer_state_bytes bytes, returns HEADRACE_INVALID_ARGUMENT, and the state set before
 * remains. */
headrace_code headrace_engine_set_trainer_state(headrace_engine* engine, const void* state,
                                                size_t size_bytes, headrace_error* error);
/* Commits now, and returns when the commit is durable. HEADRACE_WRONG_STATE without
 * headrace.durable. */
headrace_code headrace_engine_commit(headrace_engine* engine, headrace_error* error);
/* The step of the last durable epoch; 0: there is none. A query. */
headrace_code headrace_engine_durable_step(headrace_engine* engine, uint64_t* out_step,
                                           headrace_error* error);

/* Checkpoints. headrace/checkpoint.hpp documents these calls: files, costs, ranks, and the state
 * after an error. */
typedef struct headrace_save_options {
  uint32_t struct_size;
  uint32_t latest; /* 1: also writes the file `latest` beside the folder; 0: does not */
  uint64_t file_bytes;
  const void* trainer_state; /* NULL if trainer_state_bytes is 0 */
  size_t trainer_state_bytes;
} headrace_save_options;
static inline void headrace_save_options_init(headrace_save_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->latest = 0;
  options->file_bytes = 5000000000u;
  options->trainer_state = NULL;
  options->trainer_state_bytes = 0;
}
/* If `options` is NULL, the defaults of headrace_save_options_init() apply. */
headrace_code headrace_engine_save_checkpoint(headrace_engine* engine, const char* directory,
                                              const headrace_save_options* options,
                                              headrace_error* error);
/* A save that goes on beside training. Its calls may run on any thread, beside any call. The handle
 * may outlive its engine. */
typedef struct headrace_background_save headrace_background_save;
headrace_code headrace_engine_save_checkpoint_in_background(headrace_engine* engine,
                                                            const char* directory,
                                                            const headrace_save_options* options,
                                                            headrace_background_save** out_save,
                                                            headrace_error* error);
/* 1: it has ended, with a checkpoint or an error; 0: it has not. */
headrace_code headrace_background_save_done(headrace_background_save* save, int32_t* out_done,
                                            headrace_error* error);
/* Returns when it has ended, each time with its error or HEADRACE_OK. From then on, no rate limits
 * it. */
headrace_code headrace_background_save_wait(headrace_background_save* save, headrace_error* error);
/* Ends the handle alone: the save goes on. HEADRACE_WRONG_STATE while a call with it runs. */
headrace_code headrace_background_save_destroy(headrace_background_save* save,
                                               headrace_error* error);
headrace_code headrace_engine_load_checkpoint(headrace_engine* engine, const char* directory,
                                              headrace_error* error);
typedef struct headrace_weight_options {
  uint32_t struct_size;
  uint32_t allow_unused; /* 1: tensors that no parameter takes are left out; 0: are refused */
  /* Writes the name of the tensor that a parameter takes, with a NUL, to `buffer`. NULL: the
   * parameter's full name. */
  headrace_code (*tensor_name)(void* context, const char* full_name, char* buffer, size_t capacity);
  void* context;
} headrace_weight_options;
static inline void headrace_weight_options_init(headrace_weight_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->allow_unused = 0;
  options->tensor_name = NULL;
  options->context = NULL;
}
/* load_weights(): from safetensors files of another program. If `options` is NULL, the defaults of
 * headrace_weight_options_init() apply. */
headrace_code headrace_engine_load_weights(headrace_engine* engine, const char* path,
                                           const headrace_weight_options* options,
                                           headrace_error* error);
/* The bytes that headrace_save_options.trainer_state gave to the checkpoint that was loaded last; a
 * list (convention 6) of bytes. It has none if no checkpoint was loaded, or if the last load
 * failed. */
headrace_code headrace_engine_loaded_trainer_state(headrace_engine* engine, void* buffer,
                                                   size_t capacity, size_t* out_size_bytes,
                                                   headrace_error* error);

/* `directory` may be NULL: the engine's nvme paths. */
headrace_code headrace_engine_sleep(headrace_engine* engine, const char* directory,
                                    headrace_error* error);
headrace_code headrace_engine_wake(headrace_engine* engine, headrace_error* error);

/* {"schema_version":1,...} with the names of Stats (headrace/stats.hpp). */
headrace_code headrace_engine_stats_json(headrace_engine* engine, char* buffer, size_t capacity,
                                         size_t* out_needed, headrace_error* error);
/* Takes the oldest log line that the engine keeps (headrace_engine_options.kept_log_lines). If it
 * keeps none, writes 0 to *out_needed. A call that does not get the whole line leaves it there.
 * When there are too many lines, the oldest one goes, and a warning counts those that went. A
 * query; works after close too. */
headrace_code headrace_engine_take_log(headrace_engine* engine, int32_t* out_level, char* buffer,
                                       size_t capacity, size_t* out_needed, headrace_error* error);
/* May be called from any thread and from a signal handler, at any time. The waiting call soon
 * returns HEADRACE_INTERRUPTED, and so does every later call except queries, release, close and
 * destroy. An interrupt cannot be undone. If a callback is running, the waiting call first waits
 * for it to return. */
headrace_code headrace_engine_interrupt(headrace_engine* engine);
/* Ends threads and frees files and memory; the handle remains until destroy. */
headrace_code headrace_engine_close(headrace_engine* engine, headrace_error* error);

/* ---- the optimizer alone ---- */
/* headrace/cpu_optimizer.hpp documents these calls: arithmetic, memory, threads, and the state
 * after an error. Every array belongs to the caller. Only one call at a time may use an optimizer;
 * a second one returns HEADRACE_WRONG_STATE. */
typedef struct headrace_optimizer headrace_optimizer;
typedef int32_t headrace_rule;
enum {
  HEADRACE_ADAMW = 0,
  HEADRACE_ADAM = 1,
  HEADRACE_ADAGRAD = 2,
  HEADRACE_LION = 3,
  HEADRACE_SGD = 4,
  HEADRACE_SGD_MOMENTUM = 5
};
typedef int32_t headrace_moments;
enum { HEADRACE_MOMENTS_F32 = 0, HEADRACE_MOMENTS_BF16 = 1, HEADRACE_MOMENTS_8BIT = 2 };
typedef int32_t headrace_master_layout;
enum { HEADRACE_MASTER_SPLIT = 0, HEADRACE_MASTER_F32 = 1 };

typedef struct headrace_optimizer_options {
  uint32_t struct_size;
  headrace_rule rule;
  headrace_moments moments;
  uint32_t threads;         /* 0: as many as the process may use */
  uint64_t rounding_seed;   /* for moments of fewer than 32 bits */
  uint32_t skip_non_finite; /* 0: a step with a gradient that is not finite fails with
                               HEADRACE_NOT_FINITE; 1: it updates nothing and says so */
  uint32_t check_gradients; /* 0: values that are not finite enter the state */
} headrace_optimizer_options;
static inline void headrace_optimizer_options_init(headrace_optimizer_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->rule = HEADRACE_ADAMW;
  options->moments = HEADRACE_MOMENTS_F32;
  options->threads = 0;
  options->rounding_seed = 0;
  options->skip_non_finite = 0;
  options->check_gradients = 1;
}
/* Starts the threads. `options` may be NULL. */
headrace_code headrace_optimizer_create(const headrace_optimizer_options* options,
                                        headrace_optimizer** out_optimizer, headrace_error* error);
/* Ends the threads and removes the handle. Does nothing for NULL. */
headrace_code headrace_optimizer_destroy(headrace_optimizer* optimizer, headrace_error* error);

/* Size in bytes of each array of a parameter's state; 0: the parameter has no such array. */
typedef struct headrace_state_bytes {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t master;
  uint64_t moment[2];
  uint64_t moment_scale[2];
} headrace_state_bytes;
static inline void headrace_state_bytes_init(headrace_state_bytes* bytes) {
  bytes->struct_size = (uint32_t)sizeof *bytes;
  bytes->reserved = 0;
}
headrace_code headrace_optimizer_state_bytes(headrace_optimizer* optimizer, headrace_dtype dtype,
                                             headrace_master_layout layout, uint64_t elements,
                                             headrace_state_bytes* out_bytes,
                                             headrace_error* error);

/* One parameter's arrays, of the sizes that headrace_optimizer_state_bytes() gives. An array that
 * the parameter does not have is NULL. */
typedef struct headrace_parameter_state {
  uint32_t struct_size;
  headrace_dtype dtype;
  const char* name; /* for messages; NULL: they give the index in the call */
  uint64_t number;  /* selects the random bits for moments of fewer than 32 bits */
  uint64_t elements;
  headrace_master_layout layout; /* of BF16: SPLIT or F32; the other dtypes have one layout each */
  uint32_t reserved;
  void* weight;
  void* master;
  void* moment[2];
  void* moment_scale[2];
} headrace_parameter_state;
static inline void headrace_parameter_state_init(headrace_parameter_state* state) {
  state->struct_size = (uint32_t)sizeof *state;
  state->dtype = HEADRACE_BF16;
  state->name = NULL;
  state->number = 0;
  state->elements = 0;
  state->layout = HEADRACE_MASTER_SPLIT;
  state->reserved = 0;
  state->weight = NULL;
  state->master = NULL;
  state->moment[0] = state->moment[1] = NULL;
  state->moment_scale[0] = state->moment_scale[1] = NULL;
}
/* Moments become 0, masters the weights. `states` is an array of `count` structs, all with the same
 * struct_size. */
headrace_code headrace_optimizer_initialize(headrace_optimizer* optimizer,
                                            const headrace_parameter_state* states, size_t count,
                                            headrace_error* error);

typedef struct headrace_parameter_update {
  uint32_t struct_size;
  headrace_dtype gradient_dtype;
  const void* gradient; /* as many elements as the weight has */
  uint64_t t;           /* updates of this parameter, including this one: 1, 2, ... */
  const headrace_hyperparameters* hyperparameters; /* NULL: headrace_hyperparameters_init() */
} headrace_parameter_update;
static inline void headrace_parameter_update_init(headrace_parameter_update* update) {
  update->struct_size = (uint32_t)sizeof *update;
  update->gradient_dtype = HEADRACE_BF16;
  update->gradient = NULL;
  update->t = 0;
  update->hyperparameters = NULL;
}
/* Of the gradients as given, before scaling. To combine those of several calls, add up the first
 * two. */
typedef struct headrace_gradient_statistics {
  uint32_t struct_size;
  uint32_t reserved;
  double sum_squares;
  uint64_t non_finite;
  uint64_t first_non_finite; /* index in the call; UINT64_MAX: all are finite */
} headrace_gradient_statistics;
static inline void headrace_gradient_statistics_init(headrace_gradient_statistics* statistics) {
  statistics->struct_size = (uint32_t)sizeof *statistics;
  statistics->reserved = 0;
  statistics->sum_squares = 0;
  statistics->non_finite = 0;
  statistics->first_non_finite = UINT64_MAX;
}
typedef struct headrace_update_result {
  uint32_t struct_size;
  uint32_t skipped;  /* 1: nothing was updated, because a gradient is not finite */
  uint32_t measured; /* 0: the norm was not computed */
  uint32_t reserved;
  double gradient_norm; /* scaled, before clipping */
  double clip_factor;   /* 1: nothing was clipped */
  uint64_t non_finite_gradients;
} headrace_update_result;
static inline void headrace_update_result_init(headrace_update_result* result) {
  result->struct_size = (uint32_t)sizeof *result;
}
/* Updates all of these parameters once: updates[i] belongs to states[i]. `options` NULL: the
 * defaults of headrace_step_options_init(). `of_all` NULL: the norm is that of these gradients;
 * else it is the caller's, of gradients that several calls or ranks share. `out_result` may be
 * NULL. */
headrace_code headrace_optimizer_step(headrace_optimizer* optimizer,
                                      const headrace_parameter_state* states,
                                      const headrace_parameter_update* updates, size_t count,
                                      const headrace_step_options* options,
                                      const headrace_gradient_statistics* of_all,
                                      headrace_update_result* out_result, headrace_error* error);
headrace_code headrace_optimizer_gradient_statistics(headrace_optimizer* optimizer,
                                                     const headrace_parameter_state* states,
                                                     const headrace_parameter_update* updates,
                                                     size_t count,
                                                     headrace_gradient_statistics* out_statistics,
                                                     headrace_error* error);

/* ---- files of the program's own ---- */
/* headrace/file_io.hpp documents these calls: alignment, order, memory, threads and errors. Several
 * threads may make them at once. */
typedef struct headrace_io headrace_io;
typedef int32_t headrace_io_queue;
enum { HEADRACE_IO_AUTO = 0, HEADRACE_IO_URING = 1, HEADRACE_IO_THREADS = 3 };
typedef struct headrace_io_options {
  uint32_t struct_size;
  uint32_t queue_depth;
  uint32_t submit_batch;
  headrace_io_queue queue;
  uint64_t block_bytes;
  uint32_t require_direct; /* 1: what cannot go around the page cache is refused; 0: goes through */
  uint32_t reserved;
  double deadline_seconds;
} headrace_io_options;
static inline void headrace_io_options_init(headrace_io_options* options) {
  options->struct_size = (uint32_t)sizeof *options;
  options->queue_depth = 32;
  options->submit_batch = 2;
  options->queue = HEADRACE_IO_AUTO;
  options->block_bytes = 1048576;
  options->require_direct = 0;
  options->reserved = 0;
  options->deadline_seconds = 60;
}
/* Starts the threads. `options` may be NULL. */
headrace_code headrace_io_create(const headrace_io_options* options, headrace_io** out_io,
                                 headrace_error* error);
/* Waits for all transfers, ends the threads, and removes the handle. Does nothing for NULL. Returns
 * HEADRACE_WRONG_STATE while another call with the handle runs. */
headrace_code headrace_io_destroy(headrace_io* io, headrace_error* error);
/* Begin a transfer, and return at once. The buffer may be NULL if size_bytes is 0. */
headrace_code headrace_io_read(headrace_io* io, const char* path, uint64_t offset_bytes, void* into,
                               uint64_t size_bytes, uint64_t tag, headrace_error* error);
headrace_code headrace_io_write(headrace_io* io, const char* path, uint64_t offset_bytes,
                                const void* from, uint64_t size_bytes, uint64_t tag,
                                headrace_error* error);
/* The same with a descriptor that the program has open, and may close after the call. */
headrace_code headrace_io_read_fd(headrace_io* io, int32_t fd, uint64_t offset_bytes, void* into,
                                  uint64_t size_bytes, uint64_t tag, headrace_error* error);
headrace_code headrace_io_write_fd(headrace_io* io, int32_t fd, uint64_t offset_bytes,
                                   const void* from, uint64_t size_bytes, uint64_t tag,
                                   headrace_error* error);
/* The end of a transfer. Only headrace_io_wait() fills it in; set struct_size to its size. */
typedef struct headrace_io_done {
  uint32_t struct_size;
  headrace_code code; /* HEADRACE_OK: the transfer is whole */
  uint64_t tag;
  uint64_t done_bytes; /* from the start, without a gap */
  int32_t sys_errno;
  uint32_t reserved;
  char message[512]; /* what is missing, and why; cut at a whole character */
} headrace_io_done;
static inline void headrace_io_done_init(headrace_io_done* done) {
  done->struct_size = (uint32_t)sizeof *done;
}
/* Waits until `least` transfers are done, none is under way, or timeout_seconds have passed (below
 * 0: forever). Writes at most `capacity` of them to `done`, an array of structs with the same
 * struct_size, and their number to *out_count. `least` is at most `capacity`. */
headrace_code headrace_io_wait(headrace_io* io, size_t least, double timeout_seconds,
                               headrace_io_done* done, size_t capacity, size_t* out_count,
                               headrace_error* error);
/* Begun, and not yet written by headrace_io_wait(). */
headrace_code headrace_io_pending(headrace_io* io, uint64_t* out_count, headrace_error* error);
/* {"schema_version":1,"read_bytes":...} with the names of FileIoStats. */
headrace_code headrace_io_stats_json(headrace_io* io, char* buffer, size_t capacity,
                                     size_t* out_needed, headrace_error* error);

#ifdef __cplusplus
}
#endif
#endif
