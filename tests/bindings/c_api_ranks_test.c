/* SPDX-License-Identifier: Apache-2.0
 * c_api_ranks_test.c: two ranks, each an engine in a thread, on a device and a collective that are
 * C's. A parameter of which each rank has half a gradient ends as one rank with the whole. */
#include "c_host.h"

#include <pthread.h>

/* ---- a collective of two threads ---- */
struct meeting {
  pthread_barrier_t barrier;
  void* given[2];
};
struct seat {
  struct meeting* meeting;
  uint32_t rank;
  int exchanges; /* made */
};
/* Both have given when it returns, and both may read until the next meet(). */
static void* other_of(const struct seat* seat, void* mine) {
  seat->meeting->given[seat->rank] = mine;
  pthread_barrier_wait(&seat->meeting->barrier);
  return seat->meeting->given[1 - seat->rank];
}
static void meet(const struct seat* seat) { pthread_barrier_wait(&seat->meeting->barrier); }

static headrace_code two_all_gather(void* context, uint64_t sequence, const char* what,
                                    headrace_stream stream, const headrace_piece* whole) {
  const struct seat* seat = (const struct seat*)context;
  const uint32_t peer = 1 - seat->rank;
  const headrace_piece* other = (const headrace_piece*)other_of(seat, (void*)whole);
  (void)sequence, (void)what, (void)stream;
  if (other[peer].size_bytes != whole[peer].size_bytes) return HEADRACE_UNSUPPORTED;
  if (whole[peer].size_bytes > 0)
    memcpy(whole[peer].data, other[peer].data, whole[peer].size_bytes);
  meet(seat);
  return HEADRACE_OK;
}
static headrace_code two_all_to_all(void* context, uint64_t sequence, const char* what,
                                    headrace_stream stream, const headrace_piece* give,
                                    void* take) {
  const struct seat* seat = (const struct seat*)context;
  const headrace_piece* other = (const headrace_piece*)other_of(seat, (void*)give);
  (void)sequence, (void)what, (void)stream;
  if (other[seat->rank].size_bytes != give[seat->rank].size_bytes) return HEADRACE_UNSUPPORTED;
  if (give[seat->rank].size_bytes > 0)
    memcpy(take, other[seat->rank].data, other[seat->rank].size_bytes);
  meet(seat);
  return HEADRACE_OK;
}
static headrace_code two_exchange(void* context, uint64_t sequence, const char* what,
                                  const void* mine, size_t size_bytes, void* all) {
  struct seat* seat = (struct seat*)context;
  const void* other = other_of(seat, (void*)mine);
  (void)sequence, (void)what;
  ++seat->exchanges;
  memcpy((char*)all + size_bytes * seat->rank, mine, size_bytes);
  memcpy((char*)all + size_bytes * (1 - seat->rank), other, size_bytes);
  meet(seat);
  return HEADRACE_OK;
}
static void two_abort(void* context, const char* why) {
  (void)context;
  fprintf(stderr, "a rank gave up: %s\n", why);
  exit(1); /* else the other would wait for ever */
}

/* ---- a rank ---- */
struct rank {
  struct seat seat;
  uint32_t world_size;
  const char* folder;
  float weight[2]; /* elements 0 and 1 after the step; of rank 0 */
  uint64_t updated;
};
static void must(headrace_code code, const headrace_error* said) {
  if (code == HEADRACE_OK) return;
  fprintf(stderr, "%s: %s\n", headrace_code_name(code), said->message);
  exit(1);
}
static headrace_code fill_ramp_shard(void* context, headrace_parameter parameter,
                                     uint64_t first_element, void* values, size_t size_bytes) {
  float* out = (float*)values;
  size_t i;
  (void)context;
  for (i = 0; i < size_bytes / sizeof(float); ++i)
    out[i] = (float)(first_element + i) / 100.0f + (float)parameter;
  return HEADRACE_OK;
}
static headrace_code first_two(void* context, uint64_t first, const void* values,
                               size_t size_bytes) {
  if (first == 0 && size_bytes >= 2 * sizeof(float)) memcpy(context, values, 2 * sizeof(float));
  return HEADRACE_OK;
}
static void* run(void* argument) {
  struct rank* rank = (struct rank*)argument;
  char text[8192], words[4096];
  struct host host;
  headrace_device device;
  headrace_collective collective;
  headrace_engine_options options;
  headrace_step_result result;
  headrace_parameter_spec spec;
  headrace_group group;
  headrace_engine* engine = NULL;
  headrace_gathered* gathered = NULL;
  headrace_error said;
  const int64_t shape[1] = {kElements};
  uint32_t seats[2] = {7, 7};
  float gradient[kElements] = {0};
  headrace_gradient_piece piece;
  headrace_error_init(&said, words, sizeof words);
  memset(&host, 0, sizeof host);
  device = device_of(&host);
  collective = collective_of(&host);
  collective.rank = rank->seat.rank;
  collective.world_size = rank->world_size;
  if (rank->world_size == 2) {
    collective.context = &rank->seat;
    collective.all_gather = two_all_gather;
    collective.all_to_all = two_all_to_all;
    collective.exchange = two_exchange;
    collective.abort = two_abort;
    collective.takes_any_thread = 1;
  }
  offloaded_settings(text, sizeof text, rank->folder);
  headrace_engine_options_init(&options);
  options.settings_json = text;
  options.device = &device;
  options.collective = &collective;
  options.log = host_log;
  options.log_context = &host;
  must(headrace_engine_create(&options, &engine, &said), &said);
  spec = vector_spec(shape);
  must(headrace_engine_add_group(engine, "g", &spec, 1, &group, &said), &said);
  must(headrace_engine_freeze(engine, &said), &said);
  must(headrace_engine_load_shard(engine, group, fill_ramp_shard, NULL, &said), &said);
  must(headrace_engine_gather(engine, group, 0, &gathered, &said), &said);
  must(headrace_gathered_release(gathered, &said), &said);
  gradient[0] = rank->world_size == 1 || rank->seat.rank == 0 ? 1.0f : 0.0f;
  gradient[1] = rank->world_size == 1 || rank->seat.rank == 1 ? 3.0f : 0.0f;
  must(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &said), &said);
  /* Several ranks have no sum yet. */
  if (headrace_engine_gradient_statistics(engine, 0, &piece, &said) !=
      (rank->world_size == 1 ? HEADRACE_OK : HEADRACE_UNSUPPORTED)) {
    fprintf(stderr, "gradient_statistics: code %d\n", (int)said.code);
    exit(1);
  }
  headrace_step_result_init(&result);
  must(headrace_engine_step(engine, NULL, &result, &said), &said);
  must(headrace_engine_exchange(engine, &rank->seat.rank, sizeof seats[0], seats,
                                rank->world_size * sizeof seats[0], &said),
       &said);
  if (seats[0] != 0 || seats[1] != (rank->world_size == 2 ? 1u : 7u) ||
      headrace_engine_exchange(engine, &rank->seat.rank, sizeof seats[0], seats, 1, &said) !=
          HEADRACE_INVALID_ARGUMENT) {
    fprintf(stderr, "exchange: %u, %u\n", (unsigned)seats[0], (unsigned)seats[1]);
    exit(1);
  }
  rank->updated = result.parameters_updated;
  must(headrace_engine_store(engine, 0, HEADRACE_WEIGHT, first_two, rank->weight, &said), &said);
  must(headrace_engine_destroy(engine, &said), &said);
  if (result.gradient_norm * result.gradient_norm < 9.999 ||
      result.gradient_norm * result.gradient_norm > 10.001) {
    fprintf(stderr, "the norm is %f, not the root of 10\n", result.gradient_norm);
    exit(1);
  }
  return NULL;
}

static void two_are_as_one(const struct rank* alone) {
  struct meeting meeting;
  struct rank pair[2];
  pthread_t thread;
  uint32_t r;
  pthread_barrier_init(&meeting.barrier, NULL, 2);
  for (r = 0; r < 2; ++r) {
    memset(&pair[r], 0, sizeof pair[r]);
    pair[r].seat.meeting = &meeting;
    pair[r].seat.rank = r;
    pair[r].world_size = 2;
    pair[r].folder = alone->folder;
  }
  EXPECT(pthread_create(&thread, NULL, run, &pair[1]) == 0);
  run(&pair[0]);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&meeting.barrier);
  EXPECT(pair[0].updated == 1);
  EXPECT(memcmp(pair[0].weight, alone->weight, sizeof alone->weight) == 0);
  for (r = 0; r < 2; ++r) EXPECT(pair[r].seat.exchanges > 0);
}

int main(int argc, char** argv) {
  struct rank alone;
  headrace_error_init(&error, message, sizeof message);
  memset(&alone, 0, sizeof alone);
  alone.world_size = 1;
  alone.folder = argc > 1 ? argv[1] : ".";
  run(&alone);
  EXPECT(alone.updated == 1);
  EXPECT(alone.weight[0] != 0.0f && alone.weight[1] != 0.01f); /* the ramp was left */
  two_are_as_one(&alone);
  return failures > 0;
}
