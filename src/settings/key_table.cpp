// SPDX-License-Identifier: Apache-2.0
// The table itself, in the order in which docs/settings.md and Settings::to_json() show it.
#include "settings/key_table.hpp"

namespace headrace::settings {
namespace {
constexpr Key section(std::string_view path, std::string_view help) {
  return {.path = path, .kind = Kind::kSection, .status = Status::kEngine, .help = help};
}
constexpr Key engine(std::string_view path, Kind kind, std::string_view help) {
  return {.path = path, .kind = kind, .status = Status::kEngine, .help = help};
}
constexpr Key tuned(std::string_view path, std::string_view help) {
  return engine(path, Kind::kText, help);
}
constexpr Key tuned_rate(std::string_view path, std::string_view help) {
  return engine(path, Kind::kNumber, help).from(0).in("GB/s");
}
constexpr Key trainer(std::string_view path, Kind kind, std::string_view help) {
  return {.path = path, .kind = kind, .status = Status::kTrainer, .help = help};
}
constexpr Key later(std::string_view path, Kind kind, std::string_view why) {
  return {.path = path, .kind = kind, .status = Status::kNotServed, .help = why};
}
// A count of elements, bytes or the like: whole, not negative.
constexpr Key later_count(std::string_view path, std::string_view why) {
  return later(path, Kind::kInteger, why).from(0);
}

constexpr double kMaxCount = 2147483647;
constexpr double kDaySeconds = 86400;

// What is used in place of keys that are not served.
constexpr std::string_view kRanks = "ranks talk through the collective that the trainer passes in";
constexpr std::string_view kResidency =
    "the plan decides what stays, from {headrace.host_budget_bytes}";
constexpr std::string_view kPrefetch = "{headrace.prefetch_groups} is used";
constexpr std::string_view kBuffers =
    "the plan sizes all buffers, from {headrace.update_slots} and "
    "{headrace.prefetch_groups}";
constexpr std::string_view kOverlap = "read, update and write of neighbouring tiles always overlap";
constexpr std::string_view kPinned = "host memory is one arena that the engine owns";
constexpr std::string_view kTrainers = "the trainer's own is used";
constexpr std::string_view kBatch = "the trainer's own is used, with {gradient_accumulation_steps}";
constexpr std::string_view kSaving = "the trainer saves and loads";
constexpr std::string_view kTrainerLogs = "reporting is the trainer's";
constexpr std::string_view kLossScale = "there is no fp16, and no loss scaling";
constexpr std::string_view kQuantized = "there are no quantised transfers; all values are exact";
constexpr std::string_view kStale =
    "there are no updates with stale gradients; all steps are exact";
constexpr std::string_view kFeature = "not a part of this engine";
constexpr std::string_view kActivations = "activations are the trainer's";
constexpr std::string_view kModules = "the trainer's modules run as they are";
constexpr std::string_view kRules = "{headrace.optimizer} says which of the rules runs";
constexpr std::string_view kGroups = "the trainer says which parameters form a group";

constexpr Key kKeys[] = {
    // ---- what is honoured, under DeepSpeed's names
    section("zero_optimization", "DeepSpeed's ZeRO section."),
    engine("zero_optimization.stage", Kind::kInteger,
           "Accepted for DeepSpeed's sake: what is offloaded follows from the two sections below "
           "at every stage. Below 3, "
           "where DeepSpeed would offload less than is asked for here, a warning says so.")
        .from(0, 3)
        .with_check(),
    section("zero_optimization.offload_optimizer", "Where the optimizer state lives.").or_null(),
    engine("zero_optimization.offload_optimizer.device", Kind::kChoice,
           "none: on the device. cpu: in host memory. nvme: in a swap file, unless "
           "headrace.host_budget_bytes leaves "
           "room in host memory.")
        .one_of("none|cpu|nvme")
        .into(&Settings::offload_optimizer),
    engine("zero_optimization.offload_optimizer.nvme_path", Kind::kPath,
           "A directory on the drive. One that is given in one of the two sections serves both; "
           "for several drives "
           "see headrace.nvme_paths.")
        .or_null()
        .with_check(),
    section("zero_optimization.offload_param", "Where the parameters live.").or_null(),
    engine("zero_optimization.offload_param.device", Kind::kChoice, "As for the optimizer state.")
        .one_of("none|cpu|nvme")
        .into(&Settings::offload_parameters),
    engine("zero_optimization.offload_param.nvme_path", Kind::kPath, "As for the optimizer state.")
        .or_null()
        .with_check(),
    engine("zero_optimization.cpu_offload", Kind::kBoolean,
           "Deprecated in DeepSpeed: true is offload_optimizer with device cpu.")
        .or_null()
        .with_check(),
    engine("zero_optimization.cpu_offload_params", Kind::kBoolean,
           "Deprecated in DeepSpeed: true is offload_param with device cpu.")
        .or_as("cpu_offload_param")
        .or_null()
        .with_check(),
    trainer("gradient_clipping", Kind::kNumber,
            "Largest global gradient norm; 0 does not clip. (DeepSpeed's recent versions clip at 1 "
            "by default; here "
            "nothing is clipped unless asked for.)")
        .from(0, 3.4e38)
        .into(&Settings::gradient_clipping),
    trainer("gradient_accumulation_steps", Kind::kInteger,
            "Micro-batches per step. With more than one, gradients are summed in f32: 4 bytes per "
            "parameter of host "
            "memory instead of 2.")
        .from(1, kMaxCount)
        .into(&Settings::gradient_accumulation_steps),
    section("bf16", "bfloat16 training.").or_as("bfloat16").or_null(),
    trainer(
        "bf16.enabled", Kind::kBoolean,
        "Parameters have the dtype that the trainer registers; false is a warning that says so.")
        .with_check(),
    section("data_types", "Dtypes."),
    engine("data_types.grad_accum_dtype", Kind::kChoice,
           "Gradients are accumulated in f32: fp32 or null. A lower one is accepted with a "
           "warning, as sums stay f32.")
        .one_of("fp32|bf16|fp16")
        .or_null()
        .with_check(),

    // ---- ours
    section("headrace",
            "Keys that DeepSpeed does not have. It ignores the section, so one file serves both."),
    engine("headrace.host_budget_bytes", Kind::kSizeOrAuto,
           "Ceiling of host memory; 0 is none. With it, what fits stays in host memory, what moves "
           "most often per byte first; without it all that is named nvme lives there. \"auto\" is "
           "nine tenths of what the cgroup, ulimit -v or the machine leaves: the tenth is for all "
           "else, and where activations take more of host memory, give bytes instead (`headrace "
           "plan` names them).")
        .in("bytes"),
    engine("headrace.nvme_paths", Kind::kPathList,
           "One directory per drive, for both sections; takes the place of their nvme_path.")
        .with_check(),
    engine("headrace.drive_shares", Kind::kSharesOrAuto,
           "With several paths: how much of what is swapped goes to each, in proportion, e.g. "
           "[2, 1]. auto: as freeze() measures them, all at the same time, by writing and reading "
           "a file of at most 64 MiB on each for less than a second. Changes no result.")
        .into(&Settings::drive_shares)
        .with_check(),
    engine(
        "headrace.master", Kind::kChoice,
        "How a bf16 parameter's f32 master is kept. split: the bf16 weight and 16 residual bits, "
        "10 bytes of state "
        "read and written per parameter and step. f32: a copy, 12 bytes, rounded to nearest even.")
        .one_of("split|f32")
        .into(&Settings::master),
    engine("headrace.optimizer", Kind::kChoice,
           "The update rule, as torch.optim defines it (lion: its paper). The trainer sets its "
           "constants.")
        .one_of("adamw|adam|adagrad|lion|sgd|sgd_momentum")
        .into(&Settings::optimizer),
    engine("headrace.moments", Kind::kChoice,
           "How the rule's moments are kept between steps. f32: as computed, 4 bytes each. bf16: 2 "
           "bytes; 8bit: 1 byte and a scale per 256 elements; both stochastically rounded, so "
           "results differ from f32's, and differ no more with placement or threads.")
        .one_of("f32|bf16|8bit")
        .into(&Settings::moments),
    engine("headrace.non_finite", Kind::kChoice,
           "What a step does about a gradient with NaN or infinity. stop: an error that names the "
           "parameter, nothing updated. skip: nothing updated, the gradients dropped, the step "
           "counted as skipped.")
        .one_of("stop|skip")
        .into(&Settings::non_finite),
    engine("headrace.rounding_seed", Kind::kInteger,
           "Seeds the stochastic rounding of bf16 and 8bit moments.")
        .from(0, 9007199254740991.0)
        .into(&Settings::rounding_seed),
    engine("headrace.tile_elements", Kind::kInteger,
           "The unit of optimizer work. Smaller tiles need less memory per update slot, larger "
           "ones fewer requests. "
           "Changes no result.")
        .from(65536, 4194304)
        .times(65536)
        .in("elements")
        .into(&Settings::tile_elements),
    engine("headrace.update_slots", Kind::kInteger,
           "Tiles in memory during the update. One makes progress; from three on read, update and "
           "write overlap fully.")
        .from(1, 1024)
        .into(&Settings::update_slots),
    engine("headrace.update_mode", Kind::kChoice,
           "When tiles are updated. barrier: all within a step's call. defer: that call returns "
           "before, and each group is updated just ahead of its next use, while the next forward "
           "pass computes. auto: defer where there are weights on NVMe and a second gather slot, "
           "or no "
           "weights but state on NVMe, a device with memory of its own, or several ranks. Changes "
           "no result.")
        .one_of("auto|barrier|defer")
        .into(&Settings::update_mode),
    engine("headrace.prefetch_groups", Kind::kInteger, "Groups read ahead of the one in use.")
        .from(0, 16)
        .into(&Settings::prefetch_groups),
    engine("headrace.update_threads", Kind::kInteger,
           "Threads that update tiles; 0 is what affinity, cgroup quota and Slurm leave. Changes "
           "no result.")
        .from(0, 1024)
        .into(&Settings::update_threads),
    engine("headrace.io_block_bytes", Kind::kSize, "One request to a drive.")
        .from(4096, 67108864)
        .times(4096)
        .in("bytes")
        .into(&Settings::io_block_bytes),
    engine("headrace.queue_depth", Kind::kInteger,
           "Requests in flight per drive. Most drives need 4 to 16 MiB in flight, which the "
           "defaults give.")
        .from(1, 4096)
        .into(&Settings::queue_depth),
    engine("headrace.submit_batch", Kind::kInteger,
           "Requests handed to the kernel at once. More than two adjacent ones get merged there, "
           "which is slower.")
        .from(1, 256)
        .into(&Settings::submit_batch),
    engine(
        "headrace.io_queue", Kind::kChoice,
        "auto: io_uring where it works, else Linux AIO, else threads, said once. The others: that "
        "one or an error.")
        .one_of("auto|uring|aio|threads")
        .into(&Settings::io_queue),
    engine("headrace.register_buffers", Kind::kChoice,
           "auto: io_uring is handed the engine's memory and files once instead of with every "
           "request, where the limit on locked memory allows. off: with every request. Saves CPU "
           "where memory is not on huge pages.")
        .one_of("auto|off")
        .into(&Settings::register_buffers),
    engine("headrace.direct", Kind::kChoice,
           "auto: O_DIRECT where the file system has it, else buffered with a warning. require: "
           "O_DIRECT or an error.")
        .one_of("auto|require")
        .into(&Settings::direct),
    engine("headrace.allow_memory_backed", Kind::kBoolean,
           "Lets a path be on tmpfs or ramfs. Those are memory, so this is for tests.")
        .into(&Settings::allow_memory_backed),
    engine("headrace.checksums", Kind::kSwitch,
           "XXH3 over what goes to a drive, verified when it comes back. true and false are "
           "accepted too.")
        .one_of("on|off")
        .into(&Settings::checksums),
    engine("headrace.io_warn_seconds", Kind::kNumber,
           "A transfer older than this is named in a warning.")
        .from(0.001, kDaySeconds)
        .in("seconds")
        .into(&Settings::io_warn_seconds),
    engine("headrace.io_deadline_seconds", Kind::kNumber,
           "A transfer older than this ends the run with an error that names it.")
        .from(0.001, kDaySeconds)
        .in("seconds")
        .into(&Settings::io_deadline_seconds),
    section("headrace.tuned",
            "Written by headrace tune: where the settings beside it were measured."),
    tuned("headrace.tuned.drive_model",
          "Drives the settings were measured on. Others in this run's paths are a warning.")
        .into(&Tuned::drive_model),
    tuned("headrace.tuned.file_system", "File system they were measured on. A note.")
        .into(&Tuned::file_system),
    tuned("headrace.tuned.kernel",
          "Kernel they were measured under. Another version than in its first two numbers (6.1) "
          "is a warning.")
        .into(&Tuned::kernel),
    tuned("headrace.tuned.date", "When. A note.").into(&Tuned::date),
    tuned("headrace.tuned.queue", "The I/O queue that moved the bytes. A note.")
        .into(&Tuned::queue),
    tuned("headrace.tuned.pattern", "What was measured: step, read or rw. A note.")
        .into(&Tuned::pattern),
    tuned_rate("headrace.tuned.gb_per_second", "What the settings reached, the median. A note.")
        .into(&Tuned::gb_per_second),
    tuned_rate("headrace.tuned.gb_per_second_low",
               "This and the next hold the true median with 95 %. A note.")
        .into(&Tuned::gb_per_second_low),
    tuned_rate("headrace.tuned.gb_per_second_high", "See above. A note.")
        .into(&Tuned::gb_per_second_high),
    tuned("headrace.tuned.headrace_version", "The version of headrace tune. A note.")
        .into(&Tuned::headrace_version),

    // ---- DeepSpeed's, not served: zero_optimization
    later("zero_optimization.offload_optimizer.pin_memory", Kind::kBoolean, kPinned),
    later_count("zero_optimization.offload_optimizer.buffer_count", kBuffers),
    later("zero_optimization.offload_optimizer.pipeline_read", Kind::kBoolean, kOverlap)
        .always("true"),
    later("zero_optimization.offload_optimizer.pipeline_write", Kind::kBoolean, kOverlap)
        .always("true"),
    later("zero_optimization.offload_optimizer.pipeline", Kind::kBoolean, kOverlap).always("true"),
    later("zero_optimization.offload_optimizer.fast_init", Kind::kBoolean,
          "swap files are always written in full at the start")
        .always("false"),
    later("zero_optimization.offload_optimizer.ratio", Kind::kNumber, kResidency).from(0, 1),
    later("zero_optimization.offload_optimizer.super_offload", Kind::kBoolean,
          "updates run in step(), after the norm is known")
        .always("false"),
    later("zero_optimization.offload_optimizer.cpuadam_cores_perc", Kind::kNumber,
          "{headrace.update_threads} is used; 0 is all that the machine leaves")
        .from(0, 1),
    later("zero_optimization.offload_param.pin_memory", Kind::kBoolean, kPinned),
    later_count("zero_optimization.offload_param.buffer_count", kBuffers),
    later_count("zero_optimization.offload_param.buffer_size", kBuffers).in("elements"),
    later_count("zero_optimization.offload_param.max_in_cpu", kResidency).in("elements"),
    later("zero_optimization.cpu_offload_use_pin_memory", Kind::kBoolean, kPinned).or_null(),
    later("zero_optimization.contiguous_gradients", Kind::kBoolean,
          "gradients always lie in one slab of host memory")
        .always("true"),
    later("zero_optimization.reduce_scatter", Kind::kBoolean, kRanks).always("true"),
    later_count("zero_optimization.reduce_bucket_size", kRanks).in("elements"),
    later("zero_optimization.use_multi_rank_bucket_allreduce", Kind::kBoolean, kRanks),
    later("zero_optimization.allgather_partitions", Kind::kBoolean, kRanks).always("true"),
    later_count("zero_optimization.allgather_bucket_size", kRanks).in("elements"),
    later("zero_optimization.overlap_comm", Kind::kBoolean, kRanks).or_null(),
    later("zero_optimization.load_from_fp32_weights", Kind::kBoolean, kSaving),
    later("zero_optimization.elastic_checkpoint", Kind::kBoolean, kSaving),
    later_count("zero_optimization.sub_group_size", "{headrace.tile_elements} is used")
        .in("elements"),
    later_count("zero_optimization.stage3_prefetch_bucket_size", kPrefetch)
        .or_as("prefetch_bucket_size")
        .in("elements"),
    later_count("zero_optimization.stage3_param_persistence_threshold", kResidency)
        .or_as("param_persistence_threshold")
        .in("elements"),
    later_count("zero_optimization.stage3_model_persistence_threshold", kResidency)
        .or_as("model_persistence_threshold")
        .in("elements"),
    later_count("zero_optimization.stage3_max_live_parameters", kPrefetch)
        .or_as("max_live_parameters")
        .in("elements"),
    later_count("zero_optimization.stage3_max_reuse_distance", kResidency)
        .or_as("max_reuse_distance")
        .in("elements"),
    later("zero_optimization.stage3_gather_16bit_weights_on_model_save", Kind::kBoolean, kSaving)
        .or_as("gather_16bit_weights_on_model_save"),
    later("zero_optimization.stage3_gather_fp16_weights_on_model_save", Kind::kBoolean, kSaving)
        .or_as("gather_fp16_weights_on_model_save"),
    later_count("zero_optimization.stage3_module_granularity_threshold", kGroups)
        .or_as("module_granularity_threshold")
        .always("0"),
    later("zero_optimization.stage3_use_all_reduce_for_fetch_params", Kind::kBoolean, kRanks)
        .or_as("use_all_reduce_for_fetch_params")
        .always("false"),
    later("zero_optimization.stage3_allgather_sequential", Kind::kBoolean, kRanks)
        .or_as("allgather_sequential"),
    later("zero_optimization.ignore_unused_parameters", Kind::kBoolean,
          "a parameter without a gradient is always left alone")
        .always("true"),
    later("zero_optimization.legacy_stage1", Kind::kBoolean, "DeepSpeed itself refuses it")
        .always("false"),
    later("zero_optimization.round_robin_gradients", Kind::kBoolean, kRanks).always("false"),
    later_count("zero_optimization.zero_hpz_partition_size", kRanks).always("1"),
    later("zero_optimization.zero_quantized_weights", Kind::kBoolean, kQuantized).always("false"),
    later("zero_optimization.zero_quantized_nontrainable_weights", Kind::kBoolean, kQuantized)
        .always("false"),
    later("zero_optimization.zero_quantized_gradients", Kind::kBoolean, kQuantized).always("false"),
    later("zero_optimization.zeropp_loco_param", Kind::kOpenSection, kQuantized).or_null(),
    later("zero_optimization.mics_shard_size", Kind::kInteger, kRanks).from(-1).always("-1"),
    later("zero_optimization.mics_hierarchical_params_gather", Kind::kBoolean, kRanks)
        .always("false"),
    later("zero_optimization.memory_efficient_linear", Kind::kBoolean, kModules).always("false"),
    later("zero_optimization.pipeline_loading_checkpoint", Kind::kBoolean, kSaving),
    later("zero_optimization.override_module_apply", Kind::kBoolean, kModules).always("false"),
    later("zero_optimization.log_trace_cache_warnings", Kind::kBoolean, kTrainerLogs)
        .always("false"),
    later("zero_optimization.enable_sanity_checks", Kind::kBoolean, "checks are always on")
        .always("true"),
    later("zero_optimization.save_muon_momentum_buffer_in_memory", Kind::kBoolean, kRules),
    section("zero_optimization.leaf_module", "Modules that DeepSpeed fetches whole.").or_null(),
    later("zero_optimization.leaf_module.classes", Kind::kTextList, kGroups),
    later("zero_optimization.leaf_module.names", Kind::kTextList, kGroups),
    later("zero_optimization.leaf_module.name_suffixes", Kind::kTextList, kGroups),
    section("zero_optimization.zenflow", "Updates that DeepSpeed delays.").or_null(),
    later("zero_optimization.zenflow.topk_ratio", Kind::kNumber, kStale).from(0, 1),
    later("zero_optimization.zenflow.select_strategy", Kind::kText, kStale),
    later_count("zero_optimization.zenflow.select_interval", kStale),
    later_count("zero_optimization.zenflow.update_interval", kStale),
    later("zero_optimization.zenflow.overlap_step", Kind::kBoolean, kStale),
    later("zero_optimization.zenflow.offload", Kind::kBoolean, kStale),
    later("zero_optimization.zenflow.auto_ratio", Kind::kNumber, kStale).from(0, 1),
    later_count("zero_optimization.zenflow.full_warm_up_rounds", kStale),
    later("zero_optimization.zenflow.pt_reserved_cores_perc", Kind::kNumber, kStale).from(0, 1),
    later_count("zero_optimization.zenflow.steps_per_epoch", kStale).or_null(),

    // ---- aio
    section("aio", "DeepSpeed's drive section."),
    later_count("aio.block_size", "{headrace.io_block_bytes} is used")
        .in("bytes")
        .as("headrace.io_block_bytes"),
    later_count("aio.queue_depth", "{headrace.queue_depth} is used").as("headrace.queue_depth"),
    later_count("aio.intra_op_parallelism",
                "each drive has one thread, with {headrace.queue_depth}")
        .or_as("thread_count")
        .always("1"),
    later("aio.single_submit", Kind::kBoolean, "{headrace.submit_batch} is used"),
    later("aio.overlap_events", Kind::kBoolean, "requests always overlap").always("true"),
    later("aio.use_gds", Kind::kBoolean, "transfers between drive and GPU memory are not served")
        .always("false"),

    // ---- dtypes
    section("fp16", "float16 training.").or_null(),
    later("fp16.enabled", Kind::kBoolean, "fp16 is not served, so true is an error").with_check(),
    later("fp16.auto_cast", Kind::kBoolean, kLossScale),
    later("fp16.loss_scale", Kind::kNumber, kLossScale).from(0),
    later_count("fp16.initial_scale_power", kLossScale),
    later_count("fp16.loss_scale_window", kLossScale),
    later_count("fp16.hysteresis", kLossScale),
    later("fp16.consecutive_hysteresis", Kind::kBoolean, kLossScale),
    later("fp16.min_loss_scale", Kind::kNumber, kLossScale).from(0),
    later("fp16.fp16_master_weights_and_grads", Kind::kBoolean, kLossScale),
    later("fp16.opt_level", Kind::kText, kLossScale),
    later("bf16.auto_cast", Kind::kBoolean, kTrainers).always("false"),
    later("bf16.immediate_grad_update", Kind::kBoolean, "gradients are always taken as they arrive")
        .always("true"),
    later("bf16.check_grad_overflow", Kind::kBoolean,
          "gradients are always looked at: {headrace.non_finite} is what follows")
        .always("true"),
    later("bf16.bf16_master_weights_and_grads", Kind::kBoolean,
          "masters and sums are f32, with {headrace.master}")
        .always("false"),
    later("bf16.bf16_optimizer_states", Kind::kBoolean, "moments are kept as {headrace.moments}")
        .always("false"),
    later("data_types.param_dtype", Kind::kText,
          "parameters have the dtype that the trainer registers")
        .or_null(),
    later("data_types.buffer_dtype", Kind::kText, "buffers belong to the trainer").or_null(),

    // ---- optimizer and scheduler
    section("optimizer", "Which rule runs; its constants are the trainer's to pass on.").or_null(),
    later(
        "optimizer.type", Kind::kText,
        "sets {headrace.optimizer}: Adam and AdamW (either is adamw, unless adam_w_mode is false), "
        "Adagrad, Lion, SGD (with a momentum: sgd_momentum); another is an error")
        .with_check(),
    later("optimizer.legacy_fusion", Kind::kBoolean, kTrainers).always("false"),
    section("optimizer.params", "Its constants.").or_null(),
    later("optimizer.params.lr", Kind::kNumber, kTrainers),
    later("optimizer.params.betas", Kind::kNumberList, kTrainers),
    later("optimizer.params.eps", Kind::kNumber, kTrainers),
    later("optimizer.params.weight_decay", Kind::kNumber, kTrainers),
    later("optimizer.params.bias_correction", Kind::kBoolean, "the trainer passes it on")
        .always("true"),
    later("optimizer.params.amsgrad", Kind::kBoolean, "true is an error: AMSGrad is not served")
        .with_check(),
    later("optimizer.params.torch_adam", Kind::kBoolean, "the update runs in this engine")
        .always("false"),
    later("optimizer.params.adam_w_mode", Kind::kBoolean,
          "false makes Adam of AdamW: decay is added to the gradient")
        .with_check(),
    later("optimizer.params.momentum", Kind::kNumber,
          "the trainer's own is used; a value other than 0 makes sgd_momentum of SGD")
        .always("0"),
    later("optimizer.params.dampening", Kind::kNumber, kTrainers).always("0"),
    later("optimizer.params.nesterov", Kind::kBoolean, kTrainers).always("false"),
    later("optimizer.params.maximize", Kind::kBoolean, kTrainers).always("false"),
    later("optimizer.params.lr_decay", Kind::kNumber, kTrainers).always("0"),
    later("optimizer.params.initial_accumulator_value", Kind::kNumber,
          "Adagrad's sums of squares begin at 0")
        .always("0"),
    later("optimizer.params.fp32_optimizer_states", Kind::kBoolean,
          "moments are kept as {headrace.moments}")
        .always("true"),
    later("optimizer.params.max_grad_norm", Kind::kNumber,
          "an error, as in DeepSpeed: it is gradient_clipping")
        .with_check(),
    section("scheduler", "The trainer makes the learning-rate schedule.").or_null(),
    later("scheduler.type", Kind::kText, kTrainers).or_null(),
    later("scheduler.params", Kind::kOpenSection, kTrainers).or_null(),

    // ---- batch and the rest of the top level
    later_count("train_batch_size", kBatch),
    later_count("train_micro_batch_size_per_gpu", kBatch),
    later("managed_gradient_accumulation", Kind::kBoolean, kTrainers),
    later("zero_allow_untested_optimizer", Kind::kBoolean, kRules),
    later("zero_force_ds_cpu_optimizer", Kind::kBoolean, "the update runs in this engine"),
    later("communication_data_type", Kind::kText, kRanks).or_null(),
    later("seq_parallel_communication_data_type", Kind::kText, kRanks).or_null(),
    later("prescale_gradients", Kind::kBoolean, kRanks).always("false"),
    later("gradient_predivide_factor", Kind::kNumber, kRanks).always("1"),
    later("fp32_allreduce", Kind::kBoolean, kRanks),
    later("disable_allgather", Kind::kBoolean, kRanks).always("false"),
    later("sparse_gradients", Kind::kBoolean, "gradients are dense").always("false"),
    later("steps_per_print", Kind::kInteger, kTrainerLogs).or_null(),
    later("wall_clock_breakdown", Kind::kBoolean, kTrainerLogs).always("false"),
    later("memory_breakdown", Kind::kBoolean, kTrainerLogs).always("false"),
    later("dump_state", Kind::kBoolean, kTrainerLogs).always("false"),
    later("dataloader_drop_last", Kind::kBoolean, kTrainers),
    later("graph_harvesting", Kind::kBoolean, kModules).always("false"),
    later("use_data_before_expert_parallelism", Kind::kBoolean, kRanks).always("false"),
    later("use_node_local_storage", Kind::kBoolean, kSaving),
    section("checkpoint", "DeepSpeed's checkpoints."),
    later("checkpoint.tag_validation", Kind::kText, kSaving),
    later("checkpoint.load_universal", Kind::kBoolean, kSaving).always("false"),
    later("checkpoint.use_node_local_storage", Kind::kBoolean, kSaving),
    later("checkpoint.checkpoint_serialization", Kind::kBoolean, kSaving),
    later("checkpoint.parallel_write", Kind::kOpenSection, kSaving).or_null(),
    later("checkpoint.writer", Kind::kOpenSection, kSaving).or_null(),
    section("activation_checkpointing", "Recomputing activations."),
    later("activation_checkpointing.partition_activations", Kind::kBoolean, kActivations)
        .always("false"),
    later_count("activation_checkpointing.number_checkpoints", kActivations).or_null(),
    later("activation_checkpointing.contiguous_memory_optimization", Kind::kBoolean, kActivations)
        .always("false"),
    later("activation_checkpointing.cpu_checkpointing", Kind::kBoolean, kActivations)
        .always("false"),
    later("activation_checkpointing.synchronize_checkpoint_boundary", Kind::kBoolean, kActivations)
        .always("false"),
    later("activation_checkpointing.profile", Kind::kBoolean, kActivations).always("false"),
    section("compile", "DeepCompile."),
    later("compile.deepcompile", Kind::kBoolean, kModules).always("false"),
    later("compile.offload_parameters", Kind::kBoolean,
          "{zero_optimization.offload_param.device} is used")
        .always("false"),
    later("compile.offload_opt_states", Kind::kBoolean,
          "{zero_optimization.offload_optimizer.device} is used")
        .always("false"),
    later("compile.offload_activation", Kind::kBoolean, kActivations).always("false"),
    later("compile.offload_activation_pin_memory", Kind::kBoolean, kActivations),
    later("compile.double_buffer", Kind::kBoolean, kModules),
    later("compile.passes", Kind::kTextList, kModules).or_null(),

    // ---- whole sections of DeepSpeed's
    later("tensorboard", Kind::kOpenSection, kTrainerLogs),
    later("wandb", Kind::kOpenSection, kTrainerLogs),
    later("csv_monitor", Kind::kOpenSection, kTrainerLogs),
    later("comet", Kind::kOpenSection, kTrainerLogs),
    later("flops_profiler", Kind::kOpenSection, kTrainerLogs),
    later("comms_logger", Kind::kOpenSection, kTrainerLogs),
    later("amp", Kind::kOpenSection, kFeature),
    later("torch_autocast", Kind::kOpenSection, kFeature),
    later("autotuning", Kind::kOpenSection, kFeature),
    later("elasticity", Kind::kOpenSection, kFeature),
    later("data_efficiency", Kind::kOpenSection, kFeature),
    later("curriculum_learning", Kind::kOpenSection, kFeature),
    later("compression_training", Kind::kOpenSection, kFeature),
    later("quantize_training", Kind::kOpenSection, kFeature),
    later("weight_quantization", Kind::kOpenSection, kFeature),
    later("progressive_layer_drop", Kind::kOpenSection, kFeature),
    later("eigenvalue", Kind::kOpenSection, kFeature),
    later("sparse_attention", Kind::kOpenSection, kFeature),
    later("pipeline", Kind::kOpenSection, kFeature),
    later("tensor_parallel", Kind::kOpenSection, kFeature),
    later("hybrid_engine", Kind::kOpenSection, kFeature),
    later("nebula", Kind::kOpenSection, kFeature),
    later("datastates_ckpt", Kind::kOpenSection, kFeature),
};
}  // namespace

std::span<const Key> keys() { return kKeys; }
}  // namespace headrace::settings
