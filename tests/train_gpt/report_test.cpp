// SPDX-License-Identifier: Apache-2.0
// The report as JSON and as text.
#include "report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using nlohmann::json;

Report sample() {
  Report r;
  r.recipe.decayed = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
  r.parameters = 1000;
  r.steps = {{.step = 1,
              .loss = 5.5,
              .seconds = 2,
              .forward_s = 0.5,
              .backward_s = 1,
              .update_s = 0.5,
              .nvme_read_bytes = 10'000,
              .nvme_written_bytes = 9'000},
             {.step = 2,
              .loss = 5.25,
              .seconds = 1,
              .forward_s = 0.25,
              .backward_s = 0.5,
              .update_s = 0.25}};
  r.eval_loss = 5.0;
  r.parameters_hash = "aa";
  r.optimizer_state_hash = "bb";
  r.memory = {.planned_bytes = 4000,
              .engine_bytes = 3990,
              .peak_rss_bytes = 9000,
              .baseline_rss_bytes = 5000};
  r.stats_before.nvme_read_bytes = 500;
  r.stats_after.nvme_read_bytes = 10'500;
  r.stats_after.nvme_read_busy_seconds = 3;
  r.stats_after.update_compute_seconds = 1;
  r.stats_after.gather_wait_seconds = 0.25;
  r.stats_after.gather_wait_update_seconds = 0.125;
  r.stats_after.waits = {{"h.1", 0.25, 0.125}};
  r.drives = 2;
  r.stats_after.update_threads = 2;
  r.config = R"({"gradient_clipping":1.0})";
  r.text_bytes = 77;
  r.unigram_entropy_nats = 5.125;
  r.plan.emplace();
  r.plan->host_bytes = 3000;
  r.plan->trainer_bytes = 1000;
  r.plan->rows = {{"gradients", "host", 2000}};
  return r;
}

TEST(Report, KeepsItsPublishedNames) {
  const json d = json::parse(to_json(sample()));
  EXPECT_EQ(d["schema_version"], 1);
  EXPECT_EQ(d["parameters"], 1000);
  for (const char* key : {"step", "loss", "seconds", "forward_s", "backward_s", "update_s",
                          "nvme_read_bytes", "nvme_written_bytes"}) {
    EXPECT_TRUE(d["steps"][0].contains(key)) << key;
  }
  EXPECT_EQ(d["steps"][0]["nvme_read_bytes"], 10'000);
  EXPECT_EQ(d["steps"][1]["loss"], 5.25);
  EXPECT_EQ(d["eval_loss"], 5.0);
  EXPECT_EQ(d["hash"], (json{{"parameters", "aa"}, {"optimizer_state", "bb"}}));
  EXPECT_EQ(d["memory"]["planned_bytes"], 4000);
  EXPECT_EQ(d["memory"]["engine_bytes"], 3990);
  EXPECT_EQ(d["memory"]["peak_rss_bytes"], 9000);
  EXPECT_EQ(d["memory"]["baseline_rss_bytes"], 5000);
  EXPECT_EQ(d["options"]["betas"], (json{0.9, 0.95}));
  EXPECT_EQ(d["options"]["eps"], 1e-8);
  EXPECT_EQ(d["config"]["gradient_clipping"], 1.0);
  EXPECT_EQ(d["text"]["bytes"], 77);
  EXPECT_EQ(d["text"]["unigram_entropy_nats"], 5.125);
  EXPECT_EQ(d["plan_totals"]["update_mode"], "barrier");
  EXPECT_EQ(d["plan"][0], (json{{"what", "gradients"}, {"tier", "host"}, {"bytes", 2000}}));
  EXPECT_TRUE(d["lanes"].is_object());
}

TEST(Report, SaysWhichUpdateModeThePlanHas) {
  Report r = sample();
  r.plan->deferred_updates = true;
  EXPECT_EQ(json::parse(to_json(r))["plan_totals"]["update_mode"], "defer");
  EXPECT_NE(to_text(r).find("updates         deferred to the next forward"), std::string::npos);
}

TEST(Report, SharesLanesOverDrivesAndThreads) {
  const BusySeconds busy = busy_seconds_of(sample());
  EXPECT_DOUBLE_EQ(busy.trainer_s, 2.0);
  EXPECT_DOUBLE_EQ(busy.nvme_read_s, 1.5);
  EXPECT_DOUBLE_EQ(busy.update_s, 0.5);
  EXPECT_DOUBLE_EQ(busy.steps_s, 3.0);
  EXPECT_STREQ(busy.bound_by, "trainer");
  Report slow = sample();
  slow.stats_after.nvme_read_busy_seconds = 5;
  EXPECT_STREQ(busy_seconds_of(slow).bound_by, "nvme_read");
  const json d = json::parse(to_json(sample()));
  EXPECT_EQ(d["lanes"]["nvme_read"]["bytes"], 10'000);
}

TEST(Report, ComparesRanks) {
  EXPECT_TRUE(json::parse(to_json(sample()))["ranks"].is_null());
  Report r = sample();
  r.ranks = "3 ranks by torchrun, over gloo";
  r.of_ranks = {{"peak_rss_bytes", {3 << 20, 1 << 20, 2 << 20}},
                {"collective_seconds", {0.5, 0.25, 1}}};
  const json d = json::parse(to_json(r))["ranks"];
  EXPECT_EQ(d["started"], "3 ranks by torchrun, over gloo");
  EXPECT_EQ(d["peak_rss_bytes"]["least"], 1 << 20);
  EXPECT_EQ(d["peak_rss_bytes"]["median"], 2 << 20);
  EXPECT_EQ(d["peak_rss_bytes"]["most"], 3 << 20);
  EXPECT_EQ(d["collective_seconds"]["by_rank"], (json{0.5, 0.25, 1.0}));
  const std::string text = to_text(r);
  for (const char* line :
       {"  peak rss      1 MiB, 2 MiB, 3 MiB\n", "  collective    0.250 s, 0.500 s, 1.000 s\n"})
    EXPECT_NE(text.find(line), std::string::npos) << text;
}

TEST(Report, SaysWhatIsNotKnownAsNull) {
  Report r = sample();
  r.eval_loss.reset();
  r.parameters_hash.clear();
  r.plan.reset();
  r.steps[0].gradient_norm = NAN;
  const json d = json::parse(to_json(r));
  EXPECT_TRUE(d["eval_loss"].is_null());
  EXPECT_TRUE(d["hash"]["parameters"].is_null());
  EXPECT_TRUE(d["steps"][0]["gradient_norm"].is_null());
  EXPECT_FALSE(d.contains("plan"));
  EXPECT_FALSE(to_text(r).empty());
}

TEST(Report, SaysThatPlainComputesNoHash) {
  Report r = sample();
  r.options.plain = true;
  r.parameters_hash.clear();
  EXPECT_NE(to_text(r).find("hash            none with --plain"), std::string::npos);
}

TEST(Report, SurvivesPathsThatAreNotUtf8) {
  Report r = sample();
  r.text_origin = "/tmp/\xff\xfe";
  EXPECT_NO_THROW(json::parse(to_json(r)));
  const json failure = json::parse(failure_json({2, "kIo", "cannot open '/tmp/\xff'"}));
  EXPECT_EQ(failure["error"]["exit_code"], 2);
  EXPECT_EQ(failure["error"]["code"], "kIo");
}

TEST(Report, HoldsWhatWasDoneBeforeAnError) {
  const Failure failure{1, "kIo", "the drive is gone"};
  const json d = json::parse(to_json(sample(), &failure));
  EXPECT_EQ(d["steps_completed"], 2);
  EXPECT_EQ(d["steps"][1]["loss"], 5.25);
  EXPECT_EQ(d["error"]["message"], "the drive is gone");
  EXPECT_FALSE(json::parse(to_json(sample())).contains("error"));
  EXPECT_EQ(json::parse(failure_json(failure))["steps_completed"], 0);
}

TEST(Report, TellsPeopleTheSame) {
  const std::string text = to_text(sample());
  for (const char* word :
       {"5.5000 at step 1", "5.2500 at step 2", "held-out loss   5.0000", "0.1250 below",
        "5.00 B read, 4.50 B written", "bound by trainer", "parameters aa",
        "updates         all within step() (headrace.update_mode barrier)",
        "planned 2.93 KiB, and 1000 B of gradients in LibTorch's hands; engine holds 3.90 KiB"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
  }
}

}  // namespace
}  // namespace train_gpt
