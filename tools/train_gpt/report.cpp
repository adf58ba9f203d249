// SPDX-License-Identifier: Apache-2.0
// report.cpp: the report's JSON and text.
#include "report.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/units.hpp"
#include "program/failing.hpp"
#include "program/report_parts.hpp"

namespace train_gpt {
namespace {
using headrace::base::format_bytes;
using headrace::tools::dump;
using headrace::tools::Json;

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json step_json(const StepRecord& s) {
  return {{"step", s.step},
          {"loss", s.loss},
          {"learning_rate", s.learning_rate},
          {"gradient_norm", s.gradient_norm},
          {"skipped", s.skipped},
          {"loss_scale", s.loss_scale},
          {"seconds", s.seconds},
          {"forward_s", s.forward_s},
          {"backward_s", s.backward_s},
          {"update_s", s.update_s},
          {"nvme_read_bytes", s.nvme_read_bytes},
          {"nvme_written_bytes", s.nvme_written_bytes},
          {"kernel_read_bytes", s.kernel_read_bytes},
          {"kernel_written_bytes", s.kernel_written_bytes}};
}

double rate(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

Json lanes_json(const Report& r) {
  const BusySeconds busy = busy_seconds_of(r);
  const headrace::Stats& a = r.stats_before;
  const headrace::Stats& b = r.stats_after;
  const std::uint64_t read = b.nvme_read_bytes - a.nvme_read_bytes;
  const std::uint64_t written = b.nvme_written_bytes - a.nvme_written_bytes;
  return {
      {"trainer",
       {{"seconds", busy.trainer_s},
        {"threads", r.torch.threads},
        {"short_waits_seconds", r.short_waits_s}}},
      {"gather_wait", {{"seconds", busy.gather_wait_s}, {"update_seconds", busy.update_wait_s}}},
      {"nvme_read",
       {{"seconds", busy.nvme_read_s},
        {"bytes", read},
        {"gb_per_s", rate(read, busy.nvme_read_s)}}},
      {"nvme_write",
       {{"seconds", busy.nvme_write_s},
        {"bytes", written},
        {"gb_per_s", rate(written, busy.nvme_write_s)}}},
      {"update",
       {{"seconds", busy.update_s},
        {"threads", b.update_threads},
        {"steps_on_device", b.steps_updated_on_device - a.steps_updated_on_device},
        {"threads_source", or_null(b.update_threads_source)}}},
      {"steps", {{"seconds", busy.steps_s}}},
      {"gathers",
       {{"in_place", b.gathers_in_place - a.gathers_in_place},
        {"prefetched", b.gathers_prefetched - a.gathers_prefetched},
        {"on_demand", b.gathers_on_demand - a.gathers_on_demand}}},
      {"nvme_retries", b.nvme_retries},
      {"io_queue", or_null(b.io_queue)},
      {"io_queue_reason", or_null(b.io_queue_reason)},
      {"direct_io", b.direct_io},
      {"drives", r.drives},
      {"bound_by", busy.bound_by}};
}

Json error_json(const Failure& failure) {
  return {{"code", failure.code}, {"exit_code", failure.exit_code}, {"message", failure.text}};
}

bool on_cpu(const Report& r) { return r.options.device == "cpu"; }
const char* products_of(const Report& r) {
  if (r.torch.products_in_f32 || r.recipe.dtype == headrace::DType::kF32) return "f32";
  return r.recipe.dtype == headrace::DType::kF16 ? "fp16" : "bf16";
}

// 0.9 and not 0.8999999762.
Json shortest(float value) {
  char text[32];
  return Json::parse(text, std::to_chars(text, text + sizeof text, value).ptr);
}

Json options_json(const Report& r) {
  const Options& o = r.options;
  return {{"layers", o.shape.layers},
          {"hidden", o.shape.hidden},
          {"heads", o.shape.heads},
          {"seq", o.shape.sequence},
          {"batch", r.recipe.batch},
          {"steps", o.steps},
          {"accumulation", r.recipe.accumulation},
          {"ranks", r.recipe.ranks},
          {"dtype", name_of(r.recipe.dtype)},
          {"lr", r.recipe.learning_rate},
          {"min_lr", r.recipe.schedule ? Json(r.recipe.schedule->least) : Json()},
          {"warmup", r.recipe.schedule ? Json(r.recipe.schedule->warmup_steps) : Json()},
          {"scheduler", name_of(r.recipe.scheduler.type)},
          {"weight_decay", shortest(r.recipe.decayed.weight_decay)},
          {"betas", {shortest(r.recipe.decayed.beta1), shortest(r.recipe.decayed.beta2)}},
          {"eps", shortest(r.recipe.decayed.eps)},
          {"momentum", shortest(r.recipe.decayed.momentum)},
          {"seed", o.seed},
          {"eval_batches", o.eval_batches},
          {"threads", r.torch.threads},
          {"device", r.torch.device},
          {"products_in", products_of(r)},
          {"products_reason", or_null(r.torch.products_reason)},
          {"plain", o.plain},
          {"checkpointing", o.checkpointing},
          {"saved", or_null(r.saved)}};
}

Json checkpoints_json(const Report& r) {
  Json all = Json::array();
  for (const SavedCheckpoint& one : r.checkpoints)
    all.push_back({{"step", one.step}, {"folder", one.folder}, {"seconds", one.seconds}});
  return all;
}

Json plan_json(const headrace::PlanReport& plan) {
  Json rows = Json::array();
  for (const headrace::PlanRow& row : plan.rows) {
    rows.push_back({{"what", row.what}, {"tier", row.tier}, {"bytes", row.bytes}});
  }
  return rows;
}

Json plan_totals_json(const headrace::PlanReport& plan) {
  return {{"host_bytes", plan.host_bytes},
          {"device_bytes", plan.device_bytes},
          {"nvme_bytes", plan.nvme_bytes},
          {"save_bytes", plan.save_bytes},
          {"load_bytes", plan.load_bytes},
          {"trainer_bytes", plan.trainer_bytes},
          {"host_budget_bytes", plan.host_budget_bytes},
          {"smallest_host_bytes", plan.smallest_host_bytes},
          {"update_mode", plan.deferred_updates ? "defer" : "barrier"},
          {"resident_share_of_state", plan.resident_share_of_state},
          {"resident_share_of_parameters", plan.resident_share_of_parameters},
          {"nvme_read_bytes_per_step", plan.nvme_read_bytes_per_step},
          {"nvme_written_bytes_per_step", plan.nvme_written_bytes_per_step},
          {"host_left_bytes", plan.host_left_bytes},
          {"host_left_source", or_null(plan.host_left_source)}};
}

std::array<double, 3> least_median_most(const OfRanks& figure) {
  const auto [least, most] = std::ranges::minmax(figure.by_rank);
  return {least, headrace::tools::median_of(figure.by_rank), most};
}

// Null where there is one process.
Json ranks_json(const Report& r) {
  if (r.ranks.empty()) return nullptr;
  Json all = {{"started", r.ranks}};
  for (const OfRanks& figure : r.of_ranks) {
    const auto [least, median, most] = least_median_most(figure);
    all[figure.what] = {
        {"least", least}, {"median", median}, {"most", most}, {"by_rank", figure.by_rank}};
  }
  return all;
}

// printf into the end of a string.
__attribute__((format(printf, 2, 3))) void add(std::string& to, const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  const int size = std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  to.append(text, static_cast<std::size_t>(std::clamp(size, 0, static_cast<int>(sizeof text) - 1)));
}

// "  peak rss       290.10 MiB, 291.00 MiB, 300.25 MiB"
void add_of_ranks(std::string& out, const OfRanks& figure) {
  if (std::ranges::max(figure.by_rank) == 0) return;
  std::string name = figure.what;
  const std::size_t unit = name.rfind('_');
  const bool of_bytes = name.substr(unit) == "_bytes";
  name.resize(unit);
  std::ranges::replace(name, '_', ' ');
  std::string values;
  for (const double value : least_median_most(figure)) {
    values += values.empty() ? "" : ", ";
    if (of_bytes) {
      values += format_bytes(static_cast<std::uint64_t>(value));
    } else {
      add(values, "%.3f s", value);
    }
  }
  add(out, "  %-13s %s\n", name.c_str(), values.c_str());
}

void add_losses(std::string& out, const Report& r) {
  add(out, "parameters      %llu\n", static_cast<unsigned long long>(r.parameters));
  add(out, "trained         %s\n", r.recipe.words().c_str());
  if (!r.ranks.empty()) {
    add(out, "ranks           %s; least, median and most of them:\n", r.ranks.c_str());
    for (const OfRanks& figure : r.of_ranks) add_of_ranks(out, figure);
  }
  if (!on_cpu(r)) add(out, "device          %s\n", r.torch.device.c_str());
  add(out, "products        in %s: %s\n", products_of(r), r.torch.products_reason.c_str());
  if (!r.steps.empty()) {
    add(out, "loss            %.4f at step %llu, %.4f at step %llu\n", r.steps.front().loss,
        static_cast<unsigned long long>(r.steps.front().step), r.steps.back().loss,
        static_cast<unsigned long long>(r.steps.back().step));
  }
  const auto skipped = std::ranges::count_if(r.steps, &StepRecord::skipped);
  if (skipped > 0) {
    add(out, "skipped         %lld of %zu steps, whose gradients were not finite\n",
        static_cast<long long>(skipped), r.steps.size());
  }
  if (r.eval_loss) {
    const double gain = r.unigram_entropy_nats - *r.eval_loss;
    add(out, "held-out loss   %.4f nats per byte, %.4f %s the text's unigram entropy of %.4f\n",
        *r.eval_loss, std::fabs(gain), gain < 0 ? "above" : "below", r.unigram_entropy_nats);
  }
}

// Of the steps in the middle: where updates are deferred, the first step has none behind it.
double median_of(const std::vector<StepRecord>& steps, std::uint64_t StepRecord::*bytes) {
  std::vector<double> values;
  for (const StepRecord& step : steps) values.push_back(static_cast<double>(step.*bytes));
  return headrace::tools::median_of(std::move(values));
}

void add_traffic(std::string& out, const Report& r) {
  out += r.plan->deferred_updates
             ? "updates         deferred to the next forward (headrace.update_mode defer)"
             : "updates         all within step() (headrace.update_mode barrier)";
  if (!on_cpu(r)) {
    add(out, "; on the GPU in %llu of %zu steps (headrace.update_on)",
        static_cast<unsigned long long>(r.stats_after.steps_updated_on_device -
                                        r.stats_before.steps_updated_on_device),
        r.steps.size());
  }
  out += "\n";
  const auto parameters = static_cast<double>(std::max<std::uint64_t>(r.parameters, 1));
  const double read = median_of(r.steps, &StepRecord::nvme_read_bytes);
  const double written = median_of(r.steps, &StepRecord::nvme_written_bytes);
  add(out, "NVMe a step     %.2f B read, %.2f B written per parameter (plan: %.2f, %.2f)\n",
      read / parameters, written / parameters, r.plan->nvme_read_bytes_per_step / parameters,
      r.plan->nvme_written_bytes_per_step / parameters);
}

void add_times(std::string& out, const Report& r) {
  if (r.steps.empty()) return;
  const BusySeconds busy = busy_seconds_of(r);
  const auto count = static_cast<double>(r.steps.size());
  double forward = 0, backward = 0, update = 0;
  for (const StepRecord& s : r.steps) {
    forward += s.forward_s / count;
    backward += s.backward_s / count;
    update += s.update_s / count;
  }
  add(out, "seconds a step  %.3f: forward %.3f, backward %.3f, update %.3f\n", busy.steps_s / count,
      forward, backward, update);
  if (r.short_waits_s > 0) {
    add(out,
        "shared CPUs     other threads wanted them: LibTorch's slept in place of spinning for "
        "%.1f of %.1f s\n",
        std::min(r.short_waits_s, busy.steps_s), busy.steps_s);
  }
  if (!r.plan) return;
  add_traffic(out, r);
  add(out,
      "seconds a lane  trainer %.2f, NVMe read %.2f, NVMe write %.2f, update arithmetic %.2f; "
      "bound by %s\n",
      busy.trainer_s, busy.nvme_read_s, busy.nvme_write_s, busy.update_s, busy.bound_by);
  if (r.stats_after.waits.empty()) return;
  add(out, "trainer waited  %.2f s: for updates %.2f, for reads %.2f; for group '%s' longest\n",
      busy.gather_wait_s, busy.update_wait_s, busy.gather_wait_s - busy.update_wait_s,
      r.stats_after.waits.front().group.c_str());
}

void add_memory(std::string& out, const Report& r) {
  const std::uint64_t above =
      r.memory.peak_rss_bytes - std::min(r.memory.peak_rss_bytes, r.memory.baseline_rss_bytes);
  add(out, "peak memory     %s above the %s of the libraries", format_bytes(above).c_str(),
      format_bytes(r.memory.baseline_rss_bytes).c_str());
  if (r.plan) {
    add(out,
        "; planned %s, and %s of gradients in LibTorch's hands; engine holds %s%s; %s on NVMe\n",
        format_bytes(r.plan->host_bytes).c_str(), format_bytes(r.plan->trainer_bytes).c_str(),
        format_bytes(r.memory.engine_bytes).c_str(), on_cpu(r) ? "" : " of host and device memory",
        format_bytes(r.plan->nvme_bytes).c_str());
  } else {
    add(out, "; activations %s (peak of forward and backward, less weights and gradients)\n",
        format_bytes(r.memory.activations_bytes).c_str());
  }
  if (on_cpu(r)) return;
  const std::string ours =
      r.plan ? ", " + format_bytes(r.plan->device_bytes) + " of it the engine's" : "";
  add(out, "device memory   %s at most%s\n", format_bytes(r.memory.device_peak_bytes).c_str(),
      ours.c_str());
}
}  // namespace

BusySeconds busy_seconds_of(const Report& r) {
  const headrace::Stats& a = r.stats_before;
  const headrace::Stats& b = r.stats_after;
  BusySeconds busy;
  double passes = 0;
  for (const StepRecord& s : r.steps) {
    passes += s.forward_s + s.backward_s;
    busy.steps_s += s.seconds;
  }
  const double drives = std::max(1u, r.drives);
  busy.gather_wait_s = b.gather_wait_seconds - a.gather_wait_seconds;
  busy.update_wait_s = b.gather_wait_update_seconds - a.gather_wait_update_seconds;
  busy.trainer_s = std::max(0.0, passes - busy.gather_wait_s);
  busy.nvme_read_s = (b.nvme_read_busy_seconds - a.nvme_read_busy_seconds) / drives;
  busy.nvme_write_s = (b.nvme_write_busy_seconds - a.nvme_write_busy_seconds) / drives;
  busy.update_s =
      (b.update_compute_seconds - a.update_compute_seconds) / std::max(1u, b.update_threads);
  double most = busy.trainer_s;
  for (const auto& [seconds, name] : {std::pair{busy.nvme_read_s, "nvme_read"},
                                      {busy.nvme_write_s, "nvme_write"},
                                      {busy.update_s, "update"}}) {
    if (seconds <= most) continue;
    most = seconds;
    busy.bound_by = name;
  }
  return busy;
}

Json steps_json(const Report& r) {
  Json steps = Json::array();
  for (const StepRecord& s : r.steps) steps.push_back(step_json(s));
  return steps;
}

std::string to_json(const Report& r, const Failure* failure) {
  Json memory = {{"planned_bytes", r.memory.planned_bytes},
                 {"engine_bytes", r.memory.engine_bytes},
                 {"peak_rss_bytes", r.memory.peak_rss_bytes},
                 {"baseline_rss_bytes", r.memory.baseline_rss_bytes}};
  if (!on_cpu(r)) {
    memory["device_peak_bytes"] = r.memory.device_peak_bytes;
    if (r.plan) memory["device_planned_bytes"] = r.plan->device_bytes;
  }
  if (r.options.plain) memory["activations_bytes"] = r.memory.activations_bytes;
  Json config = Json::parse(r.config, nullptr, false);
  if (config.is_discarded()) config = nullptr;
  Json document = {{"schema_version", 1},
                   {"program", "train_gpt"},
                   {"parameters", r.parameters},
                   {"steps_completed", r.resumed_from + r.steps.size()},
                   {"resumed_from", r.resumed_from},
                   {"steps", steps_json(r)},
                   {"checkpoints", checkpoints_json(r)},
                   {"eval_loss", r.eval_loss ? Json(*r.eval_loss) : Json(nullptr)},
                   {"hash",
                    {{"parameters", or_null(r.parameters_hash)},
                     {"optimizer_state", or_null(r.optimizer_state_hash)}}},
                   {"memory", memory},
                   {"lanes", lanes_json(r)},
                   {"ranks", ranks_json(r)},
                   {"config", config},
                   {"options", options_json(r)},
                   {"text",
                    {{"origin", r.text_origin},
                     {"bytes", r.text_bytes},
                     {"unigram_entropy_nats", r.unigram_entropy_nats}}}};
  if (r.plan) {
    document["plan"] = plan_json(*r.plan);
    document["plan_totals"] = plan_totals_json(*r.plan);
  }
  if (failure != nullptr) document["error"] = error_json(*failure);
  return dump(document);
}

std::string to_text(const Report& r) {
  std::string out;
  add_losses(out, r);
  add_times(out, r);
  add_memory(out, r);
  if (!r.parameters_hash.empty()) {
    out += "hash            parameters " + r.parameters_hash + ", optimizer state " +
           r.optimizer_state_hash + "\n";
  } else if (r.options.plain) {
    out += "hash            none with --plain, which has no engine to compute it\n";
  }
  if (!r.saved.empty()) out += "saved           " + r.saved + "\n";
  return out;
}

std::string failure_json(const Failure& failure) {
  return dump({{"schema_version", 1},
               {"program", "train_gpt"},
               {"steps_completed", 0},
               {"error", error_json(failure)}});
}
}  // namespace train_gpt
