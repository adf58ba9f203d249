/* SPDX-License-Identifier: Apache-2.0
 * 08_c_ranks: ranks of an MPI program share one engine's parameters, in C. The program brings its
 * own collective: four functions over MPI.
 *
 *   08_c_ranks [FOLDER]                one rank
 *   mpirun -n 3 08_c_ranks [FOLDER]    three ranks: the same output, bit for bit
 *
 * FOLDER is for swap files; without it, all lies in memory.
 */
#include <headrace/c.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { kElements = 5 * 65536, kSteps = 10, kMicroBatches = 12, kMostRanks = kMicroBatches };

static char message[4096];
static headrace_error error;
static void must(headrace_code code) {
  if (code == HEADRACE_OK) return;
  fprintf(stderr, "08_c_ranks: %s: %s\n", headrace_code_name(code), message);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// [collective]
/* The engine compares the ranks' calls itself, so these move bytes and nothing else. MPI counts in
 * int: gathered groups are smaller than 2 GiB here. By default an error of MPI ends the job. */
static headrace_code all_gather(void* context, uint64_t sequence, const char* what,
                                headrace_stream stream, const headrace_piece* whole) {
  const headrace_collective* ranks = (const headrace_collective*)context;
  int sizes[kMostRanks], offsets[kMostRanks], r, end = 0;
  (void)sequence, (void)what, (void)stream; /* the CPU's memory: no stream to wait for */
  for (r = 0; r < (int)ranks->world_size; ++r) {
    offsets[r] = end;
    sizes[r] = (int)whole[r].size_bytes;
    end += sizes[r];
  }
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, whole[0].data, sizes, offsets, MPI_BYTE,
                 MPI_COMM_WORLD);
  return HEADRACE_OK;
}
static headrace_code all_to_all(void* context, uint64_t sequence, const char* what,
                                headrace_stream stream, const headrace_piece* give, void* take) {
  const headrace_collective* ranks = (const headrace_collective*)context;
  const int own = (int)give[ranks->rank].size_bytes;
  MPI_Request requests[2 * kMostRanks];
  int count = 0, r;
  char* to = (char*)take;
  (void)sequence, (void)what, (void)stream;
  for (r = 0; r < (int)ranks->world_size; ++r) {
    if (r == (int)ranks->rank) continue;
    MPI_Irecv(to, own, MPI_BYTE, r, 0, MPI_COMM_WORLD, &requests[count++]);
    MPI_Isend(give[r].data, (int)give[r].size_bytes, MPI_BYTE, r, 0, MPI_COMM_WORLD,
              &requests[count++]);
    to += own;
  }
  MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
  return HEADRACE_OK;
}
static headrace_code exchange(void* context, uint64_t sequence, const char* what, const void* mine,
                              size_t size_bytes, void* all) {
  (void)context, (void)sequence, (void)what;
  MPI_Allgather(mine, (int)size_bytes, MPI_BYTE, all, (int)size_bytes, MPI_BYTE, MPI_COMM_WORLD);
  return HEADRACE_OK;
}
static void give_up(void* context, const char* why) {
  (void)context;
  fprintf(stderr, "08_c_ranks: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}
// [/collective]

/* This rank's part of the parameter. */
static headrace_code fill(void* context, headrace_parameter parameter, uint64_t first_element,
                          void* values, size_t size_bytes) {
  float* out = (float*)values;
  size_t i;
  (void)context, (void)parameter;
  for (i = 0; i < size_bytes / sizeof(float); ++i)
    out[i] = (float)((first_element + i) % 1000) / 1000;
  return HEADRACE_OK;
}

/* The gradient of a micro-batch: a slope towards values of its own. */
static void compute(const float* weight, int micro_batch, float* gradient) {
  int i;
  for (i = 0; i < kElements; ++i)
    gradient[i] = weight[i] - (float)((i * 7 + micro_batch * 31) % 101) / 101;
}

static void train(headrace_engine* engine, const headrace_collective* ranks) {
  const int64_t shape[1] = {kElements};
  float* const gradient = (float*)malloc(kElements * sizeof(float));
  char hash[HEADRACE_HASH_CAPACITY];
  headrace_parameter_spec spec;
  headrace_group group;
  uint32_t step, at;
  headrace_parameter_spec_init(&spec);
  spec.name = "weight";
  spec.dtype = HEADRACE_F32;
  spec.shape = shape;
  spec.dimensions = 1;
  must(headrace_engine_add_group(engine, "layer", &spec, 1, &group, &error));
  must(headrace_engine_freeze(engine, &error));
  must(headrace_engine_load_shard(engine, group, fill, NULL, &error));
  for (step = 0; step < kSteps; ++step) {
    headrace_step_options options;
    /* Rank r of W computes micro-batches r, W + r, 2 W + r, ...: the same bits for every W. */
    for (at = ranks->rank; at < kMicroBatches; at += ranks->world_size) {
      headrace_gathered* gathered;
      void* weight;
      size_t size_bytes;
      must(headrace_engine_gather(engine, group, 0, &gathered, &error));
      must(headrace_gathered_bytes(gathered, 0, &weight, &size_bytes, &error));
      compute((const float*)weight, (int)at, gradient);
      must(headrace_gathered_release(gathered, &error));
      must(headrace_engine_add_gradient(engine, 0, gradient, HEADRACE_F32, 0, &error));
    }
    headrace_step_options_init(&options);
    options.learning_rate = 0.01f;
    options.gradient_scale = 1.0f / kMicroBatches;
    must(headrace_engine_step(engine, &options, NULL, &error));
  }
  must(headrace_engine_hash_parameters(engine, hash, &error)); /* of the whole, on every rank */
  if (ranks->rank == 0) printf("parameters %s\n", hash);
  free(gradient);
}

int main(int argc, char** argv) {
  headrace_collective ranks = {sizeof ranks, 0, 1, NULL, all_gather, all_to_all, exchange, give_up};
  headrace_engine_options options;
  headrace_engine* engine;
  int rank, world_size;
  char steps[64], path[4096];
  const char* overrides[5];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (kMicroBatches % world_size != 0) {
    fprintf(stderr, "08_c_ranks: 12 micro-batches go into 1, 2, 3, 4, 6 or 12 ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  ranks.context = &ranks;
  ranks.rank = (uint32_t)rank;
  ranks.world_size = (uint32_t)world_size;
  headrace_error_init(&error, message, sizeof message);
  headrace_engine_options_init(&options);
  snprintf(steps, sizeof steps, "gradient_accumulation_steps=%d", kMicroBatches / world_size);
  overrides[0] = steps;
  if (argc > 1) {
    snprintf(path, sizeof path, "zero_optimization.offload_param.nvme_path=%s", argv[1]);
    overrides[1] = path;
    overrides[2] = "zero_optimization.offload_param.device=nvme";
    overrides[3] = "zero_optimization.offload_optimizer.device=nvme";
    overrides[4] = "headrace.allow_memory_backed=true"; /* a few numbers may lie in a tmpfs */
  }
  options.overrides = overrides;
  options.override_count = argc > 1 ? 5 : 1;
  options.collective = &ranks;
  must(headrace_engine_create(&options, &engine, &error));
  train(engine, &ranks);
  must(headrace_engine_destroy(engine, &error));
  MPI_Finalize();
  return 0;
}
