/* SPDX-License-Identifier: Apache-2.0
 * c_api_process_test.c: headrace/c.h and the process around it: threads, signals, forks, and what a
 * closed engine leaves. argv[1]: a folder on a drive. */
#include "c_host.h"
#include "c_proc.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
enum { kThreadSanitizer = 1, kSanitizer = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { kThreadSanitizer = 0, kSanitizer = 1 };
#else
enum { kThreadSanitizer = 0, kSanitizer = 0 };
#endif

static void ignore_log(void* context, int32_t level, const char* line) {
  (void)context, (void)level, (void)line;
}
/* An engine with its swap file in `folder`, or in memory where that is NULL; two groups, loaded.
 * `overrides`: settings, ended by NULL. */
static headrace_engine* engine_with(const char* folder, const char* const* overrides,
                                    headrace_error* where) {
  char text[8192];
  const int64_t shape[1] = {kElements};
  headrace_engine* engine = NULL;
  headrace_engine_options options;
  headrace_parameter_spec spec;
  headrace_group group;
  int i;
  headrace_engine_options_init(&options);
  if (folder != NULL) {
    offloaded_settings(text, sizeof text, folder);
    options.settings_json = text;
  }
  options.overrides = overrides;
  while (overrides[options.override_count] != NULL) ++options.override_count;
  options.log = ignore_log;
  spec = vector_spec(shape);
  EXPECT(headrace_engine_create(&options, &engine, where) == HEADRACE_OK);
  for (i = 0; i < 2; ++i)
    EXPECT(headrace_engine_add_group(engine, i == 0 ? "g" : "h", &spec, 1, &group, where) ==
           HEADRACE_OK);
  EXPECT(headrace_engine_freeze(engine, where) == HEADRACE_OK);
  for (i = 0; i < 2; ++i)
    EXPECT(headrace_engine_load(engine, (headrace_group)i, fill_ramp, NULL, where) == HEADRACE_OK);
  return engine;
}
static headrace_engine* ready_engine(const char* folder, const char* threads,
                                     headrace_error* where) {
  char setting[64];
  const char* overrides[2] = {NULL, NULL};
  snprintf(setting, sizeof setting, "headrace.update_threads=%s", threads);
  overrides[0] = setting;
  return engine_with(folder, overrides, where);
}
/* One step of both groups; the first code that was not HEADRACE_OK. */
static headrace_code one_step(headrace_engine* engine, headrace_error* where) {
  headrace_code code = HEADRACE_OK;
  float gradient[kElements];
  int i, k;
  for (i = 0; i < 2; ++i) {
    headrace_gathered* g = NULL;
    void* data;
    size_t size;
    code = headrace_engine_gather(engine, (headrace_group)i, 0, &g, where);
    if (code != HEADRACE_OK) return code;
    code = headrace_gathered_bytes(g, (headrace_parameter)i, &data, &size, where);
    for (k = 0; k < kElements && code == HEADRACE_OK; ++k) gradient[k] = 2 * ((float*)data)[k];
    EXPECT(headrace_gathered_release(g, where) == HEADRACE_OK);
    if (code != HEADRACE_OK) return code;
    code = headrace_engine_add_gradient(engine, (headrace_parameter)i, gradient, HEADRACE_F32, 0,
                                        where);
    if (code != HEADRACE_OK) return code;
  }
  return headrace_engine_step(engine, NULL, NULL, where);
}

/* ---- two threads make and destroy, and two engines train at once ---- */
struct trainer {
  const char* folder;
  const char* threads;
  char hash[HEADRACE_HASH_CAPACITY];
  headrace_engine* stale[100];
};
static void* make_and_destroy(void* argument) {
  struct trainer* const trainer = (struct trainer*)argument;
  int i, k;
  for (i = 0; i < 100; ++i) {
    headrace_engine* engine = NULL;
    EXPECT(headrace_engine_create(NULL, &engine, NULL) == HEADRACE_OK);
    for (k = 0; k < i; ++k)
      EXPECT(headrace_engine_interrupt(trainer->stale[k]) == HEADRACE_INVALID_ARGUMENT);
    EXPECT(headrace_engine_destroy(engine, NULL) == HEADRACE_OK);
    trainer->stale[i] = engine;
  }
  return NULL;
}
static void* train_twenty_steps(void* argument) {
  struct trainer* const trainer = (struct trainer*)argument;
  char text[512] = "";
  headrace_error mine;
  headrace_engine* engine;
  int i;
  headrace_error_init(&mine, text, sizeof text);
  engine = ready_engine(trainer->folder, trainer->threads, &mine);
  for (i = 0; i < 20; ++i) EXPECT(one_step(engine, &mine) == HEADRACE_OK);
  EXPECT(headrace_engine_hash_parameters(engine, trainer->hash, &mine) == HEADRACE_OK);
  EXPECT(headrace_engine_destroy(engine, &mine) == HEADRACE_OK);
  if (text[0] != 0) fprintf(stderr, "%s\n", text);
  return NULL;
}
static void on_two_threads(void* (*function)(void*), struct trainer* a, struct trainer* b) {
  pthread_t threads[2];
  EXPECT(pthread_create(&threads[0], NULL, function, a) == 0);
  EXPECT(pthread_create(&threads[1], NULL, function, b) == 0);
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
}
static void two_threads(const char* folder) {
  static struct trainer a, b, c;
  char first[4096], second[4096];
  snprintf(first, sizeof first, "%s/first", folder);
  snprintf(second, sizeof second, "%s/second", folder);
  mkdir(first, 0777);
  mkdir(second, 0777);
  on_two_threads(make_and_destroy, &a, &b);
  a.folder = first, a.threads = "1";
  b.folder = second, b.threads = "3";
  on_two_threads(train_twenty_steps, &a, &b);
  c.threads = "2";
  train_twenty_steps(&c);
  EXPECT(strcmp(a.hash, b.hash) == 0 && strcmp(a.hash, c.hash) == 0);
}

/* ---- two engines of different settings and paths, in turns on one thread ---- */
static void in_turns(const char* folder) {
  static const char* const overrides[2][4] = {
      {"headrace.io_queue=threads", "headrace.update_threads=1", "headrace.tile_elements=65536",
       NULL},
      {"headrace.checksums=off", "headrace.update_threads=3", "headrace.queue_depth=2", NULL}};
  char paths[2][4096], alone[2][HEADRACE_HASH_CAPACITY], together[HEADRACE_HASH_CAPACITY];
  headrace_engine* engines[2];
  int which, i;
  for (which = 0; which < 2; ++which) {
    snprintf(paths[which], sizeof paths[which], "%s/%s", folder, which == 0 ? "first" : "second");
    mkdir(paths[which], 0777);
    engines[0] = engine_with(paths[which], overrides[which], &error);
    for (i = 0; i < 10 + which; ++i) EXPECT_OK(one_step(engines[0], &error));
    EXPECT_OK(headrace_engine_hash_optimizer_state(engines[0], alone[which], &error));
    EXPECT_OK(headrace_engine_destroy(engines[0], &error));
  }
  EXPECT(strcmp(alone[0], alone[1]) != 0); /* of eleven steps and of ten */
  for (which = 0; which < 2; ++which)
    engines[which] = engine_with(paths[which], overrides[which], &error);
  for (i = 0; i < 21; ++i) EXPECT_OK(one_step(engines[(i + 1) % 2], &error));
  for (which = 0; which < 2; ++which) {
    EXPECT_OK(headrace_engine_hash_optimizer_state(engines[which], together, &error));
    EXPECT(strcmp(together, alone[which]) == 0);
    EXPECT_OK(headrace_engine_destroy(engines[which], &error));
  }
}

/* ---- one engine, called by everybody at once: codes, and bytes that hold ---- */
static headrace_engine* shared_engine;
static int stop;
static void* call_at_wrong_times(void* argument) {
  const int which = *(const int*)argument;
  char text[8192];
  size_t needed;
  int i = 0;
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    headrace_engine* const e = shared_engine;
    headrace_code code;
    ++i;
    if (which == 0) {
      /* refused only while the other thread tries freeze or destroy */
      code = headrace_engine_stats_json(e, text, sizeof text, &needed, NULL);
      EXPECT(code == HEADRACE_OK || code == HEADRACE_WRONG_STATE);
      code = headrace_engine_parameter_name(e, 1, text, sizeof text, &needed, NULL);
      EXPECT(code == HEADRACE_OK || code == HEADRACE_WRONG_STATE);
    } else {
      code = i % 4 == 0   ? headrace_engine_hash_parameters(e, text, NULL)
             : i % 4 == 1 ? headrace_engine_load(e, 1, fill_ramp, NULL, NULL)
             : i % 4 == 2 ? headrace_engine_step(e, NULL, NULL, NULL)
                          : headrace_engine_freeze(e, NULL);
      EXPECT(code == HEADRACE_OK || code == HEADRACE_WRONG_STATE);
      if (i % 16 == 0) {
        code = headrace_engine_destroy(e, NULL);
        EXPECT(code == HEADRACE_WRONG_STATE || code == HEADRACE_OK);
        if (code == HEADRACE_OK) break;
      }
    }
  }
  return NULL;
}
static void everybody_at_once(const char* folder) {
  int which[2] = {0, 1}, i;
  pthread_t threads[2];
  headrace_gathered* keeps = NULL; /* from being destroyed */
  shared_engine = ready_engine(folder, "2", &error);
  EXPECT_OK(headrace_engine_gather(shared_engine, 0, 0, &keeps, &error));
  __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
  for (i = 0; i < 2; ++i)
    EXPECT(pthread_create(&threads[i], NULL, call_at_wrong_times, &which[i]) == 0);
  for (i = 0; i < 100; ++i) {
    const headrace_code code = one_step(shared_engine, &error);
    EXPECT(code == HEADRACE_OK || code == HEADRACE_WRONG_STATE);
    headrace_engine_discard_gradients(shared_engine, &error);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  EXPECT_OK(headrace_gathered_release(keeps, &error));
  EXPECT_OK(headrace_engine_destroy(shared_engine, &error));
}

/* ---- a timer's signals, in the middle of everything ---- */
static volatile sig_atomic_t alarms, interrupt_from;
static void on_alarm(int number) {
  (void)number;
  ++alarms;
  if (interrupt_from != 0 && alarms >= interrupt_from) headrace_engine_interrupt(shared_engine);
}
static void set_timer(long microseconds) {
  struct itimerval timer;
  memset(&timer, 0, sizeof timer);
  timer.it_interval.tv_usec = timer.it_value.tv_usec = microseconds;
  setitimer(ITIMER_REAL, &timer, NULL);
}
static void signals(const char* folder) {
  struct sigaction action, before;
  char with[HEADRACE_HASH_CAPACITY], without[HEADRACE_HASH_CAPACITY];
  int round, i;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_alarm; /* without SA_RESTART: every system call is cut short */
  sigaction(SIGALRM, &action, &before);
  for (round = 0; round < 2; ++round) {
    headrace_engine* engine;
    interrupt_from = 0;
    set_timer(round == 0 ? 500 : 0);
    engine = ready_engine(folder, "2", &error);
    for (i = 0; i < 50; ++i) EXPECT_OK(one_step(engine, &error));
    EXPECT_OK(headrace_engine_hash_parameters(engine, round == 0 ? with : without, &error));
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  }
  EXPECT(alarms > 0 && strcmp(with, without) == 0);
  for (round = 0; round < 10; ++round) {
    headrace_code code = HEADRACE_OK;
    shared_engine = ready_engine(folder, "2", &error);
    interrupt_from = alarms + 1 + round % 3;
    set_timer(700);
    for (i = 0; i < 1000000 && code == HEADRACE_OK; ++i) code = one_step(shared_engine, &error);
    EXPECT(code == HEADRACE_INTERRUPTED || code == HEADRACE_FAILED);
    set_timer(0);
    interrupt_from = 0;
    EXPECT_OK(headrace_engine_destroy(shared_engine, &error));
  }
  sigaction(SIGALRM, &before, NULL);
}

/* ---- forked children ---- */
static void child(headrace_engine* engine, headrace_gathered* lease) {
  headrace_engine* own;
  char hash[HEADRACE_HASH_CAPACITY], text[256];
  float gradient[kElements] = {0};
  headrace_gathered* g = NULL;
  headrace_step_result result;
  void* data;
  size_t size;
  uint32_t n;
  failures = 0;
  headrace_step_result_init(&result);
  EXPECT_CODE(headrace_engine_group_count(engine, &n, &error), HEADRACE_WRONG_STATE);
  EXPECT_WORDS("forked child");
  EXPECT_CODE(headrace_engine_stats_json(engine, text, sizeof text, &size, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_load(engine, 0, fill_ramp, NULL, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_hash_parameters(engine, hash, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_gather(engine, 0, 0, &g, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_gathered_bytes(lease, 0, &data, &size, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_gathered_release(lease, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error),
              HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_step(engine, NULL, &result, &error), HEADRACE_WRONG_STATE);
  EXPECT(headrace_engine_interrupt(engine) == HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_close(engine, &error), HEADRACE_WRONG_STATE);
  EXPECT_CODE(headrace_engine_destroy(engine, &error), HEADRACE_WRONG_STATE);
  if (!kThreadSanitizer) { /* which cannot start threads in a child */
    own = ready_engine(NULL, "1", &error);
    EXPECT_OK(one_step(own, &error));
    EXPECT_OK(headrace_engine_destroy(own, &error));
  }
}
static void forks(const char* folder) {
  char forked[HEADRACE_HASH_CAPACITY], alone[HEADRACE_HASH_CAPACITY];
  int round, i;
  for (round = 0; round < 2; ++round) {
    headrace_engine* const engine = ready_engine(folder, "2", &error);
    for (i = 0; i < 10; ++i) {
      headrace_gathered* lease = NULL;
      int status = -1;
      EXPECT_OK(headrace_engine_gather(engine, 0, 0, &lease, &error));
      if (round == 0) {
        const pid_t pid = fork();
        if (pid == 0) {
          child(engine, lease);
          if (i % 2 == 0) _exit(failures != 0); /* and with all that exit() runs */
#ifdef __SANITIZE_ADDRESS__
          _exit(failures != 0); /* a leak search misses the threads that hold what it finds */
#else
          exit(failures != 0);
#endif
        }
        EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
      }
      EXPECT_OK(headrace_gathered_release(lease, &error));
      EXPECT_OK(one_step(engine, &error));
    }
    EXPECT_OK(headrace_engine_hash_parameters(engine, round == 0 ? forked : alone, &error));
    EXPECT_OK(headrace_engine_destroy(engine, &error));
  }
  EXPECT(strcmp(forked, alone) == 0);
}

/* ---- what is left after a hundred engines ---- */
static void nothing_is_left(const char* folder) {
  struct held before, after;
  int i;
  memset(&before, 0, sizeof before);
  for (i = 0; i < 100; ++i) {
    headrace_engine* const engine = ready_engine(i % 2 == 0 ? folder : NULL, "2", &error);
    EXPECT_OK(one_step(engine, &error));
    EXPECT((locks_held() > 0) == (i % 2 == 0));
    if (i % 3 == 0) EXPECT_OK(headrace_engine_close(engine, &error));
    EXPECT_OK(headrace_engine_destroy(engine, &error));
    if (i == 9) before = what_is_held(folder, 3);
    if (i < 10) continue;
    after = what_is_held(folder, before.threads);
    EXPECT(after.threads == before.threads && after.files == before.files);
    EXPECT(after.folder_entries == before.folder_entries && after.of_library == before.of_library);
    EXPECT(after.locks == 0);
  }
  /* Stacks and heaps that libc keeps for the next thread come and go. */
  if (!kSanitizer && after.mappings > before.mappings + 8) {
    ++failures;
    fprintf(stderr, "mappings: %d after 10 engines, %d after 100\n", before.mappings,
            after.mappings);
  }
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  headrace_error_init(&error, message, sizeof message);
  nothing_is_left(folder);
  two_threads(folder);
  in_turns(folder);
  everybody_at_once(folder);
  signals(folder);
  forks(folder);
  if (failures > 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures > 0;
}
