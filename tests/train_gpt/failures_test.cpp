// SPDX-License-Identifier: Apache-2.0
// Exit codes and the words of errors.
#include "failures.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>

namespace train_gpt {
namespace {
using headrace::Code;
using headrace::Error;

TEST(Failures, NameWhatTorchWasDoingAndNotALackOfMemory) {
  const std::runtime_error assertion(
      "d INTERNAL ASSERT FAILED at \"c10/core/Allocator.h\":214, please report a bug\nframe #0: x");
  const Failure failure = describe(assertion, true, 0, {"2.11.0", "the forward pass of step 3"});
  EXPECT_EQ(failure.code, "kTorch");
  EXPECT_EQ(failure.exit_code, kFailed);
  EXPECT_TRUE(failure.text.starts_with(
      "LibTorch 2.11.0 failed in the forward pass of step 3: d INTERNAL ASSERT FAILED"))
      << failure.text;
  EXPECT_EQ(failure.text.find('\n'), std::string::npos) << failure.text;
  for (const char* advice : {"ulimit", "memory.max", "--batch"})
    EXPECT_EQ(failure.text.find(advice), std::string::npos) << failure.text;
  for (const char* advice : {"--plain", "report"})
    EXPECT_NE(failure.text.find(advice), std::string::npos) << failure.text;
}

TEST(Failures, OfMemoryThatTorchIsRefusedKeepTheAdviceForIt) {
  for (const char* text : {"DefaultCPUAllocator: can't allocate memory: 8 bytes",
                           "CUDA out of memory. Tried to allocate 2.00 GiB"}) {
    const std::runtime_error refused(text);
    const Failure failure = describe(refused, true, 0, {"2.11.0", "the forward pass of step 3"});
    EXPECT_EQ(failure.code, "kOutOfMemory");
    EXPECT_NE(failure.text.find("--batch"), std::string::npos) << failure.text;
  }
}

TEST(ExitCode, IsTwoForWhatIsRefusedBeforeTheFirstStep) {
  for (const Code code : {Code::kSettings, Code::kOutOfBudget, Code::kNotFound, Code::kUnsupported,
                          Code::kNoSpace, Code::kInvalidArgument}) {
    EXPECT_EQ(exit_code_for(Error(code, "x"), false), 2) << headrace::code_name(code);
    EXPECT_EQ(exit_code_for(Error(code, "x"), true), 1) << headrace::code_name(code);
  }
}

TEST(ExitCode, TellsABadPathFromABadDrive) {
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EACCES), false), 2);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EROFS), false), 2);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EMFILE), false), 2) << "ulimit -n";
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EFBIG), false), 2) << "ulimit -f";
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EIO), false), 1);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EACCES), true), 1);
  EXPECT_EQ(exit_code_for(Error(Code::kNotFinite, "x"), false), 1);
}

TEST(ExitCode, NamesTheSignalWhateverItBroke) {
  const Failure told = describe(Error(Code::kInterrupted, "gather: interrupted"), true, 2);
  EXPECT_EQ(told.exit_code, 130);
  EXPECT_EQ(told.text, "ended by SIGINT");
  const Failure broke = describe(Error(Code::kIo, "short read", EIO), true, 15);
  EXPECT_EQ(broke.exit_code, 143);
  EXPECT_EQ(broke.code, "kInterrupted");
  EXPECT_EQ(broke.text, "ended by SIGTERM: short read");
  EXPECT_EQ(describe(std::runtime_error("x"), false, 15).exit_code, 143);
}

TEST(Describe, GivesCodeAndWords) {
  const Failure ours = describe(Error(Code::kNoSpace, "full"), false, 0);
  EXPECT_EQ(ours.code, "kNoSpace");
  EXPECT_EQ(ours.text, "full");
  EXPECT_EQ(ours.exit_code, 2);
  EXPECT_EQ(describe(std::bad_alloc(), true, 0).code, "kOutOfMemory");
  const Failure torchs = describe(
      std::runtime_error("DefaultCPUAllocator: can't allocate memory: 8 bytes\nframe #0: x"), true,
      0);
  EXPECT_EQ(torchs.code, "kOutOfMemory");
  EXPECT_NE(torchs.text.find("8 bytes); the run ended. Make"), std::string::npos) << torchs.text;
  EXPECT_EQ(describe(std::runtime_error("odd"), true, 0).text, "odd");
}

TEST(NoDevice, IsNotAnsweredWithTheCpu) {
  EXPECT_EQ(no_device_text("cuda", "there is no driver: the device is the CPU. Install it."),
            "--device cuda: there is no driver: the run was not started. Install it.");
  EXPECT_EQ(no_device_text("cuda:1", "an old driver: install another"),
            "--device cuda:1: an old driver: install another");
}

TEST(OutcomeText, SaysWhatIsLeftOfARun) {
  EXPECT_EQ(outcome_text({.steps_done = 3, .steps = 9, .had_swap = true}),
            "3 of 9 steps done, nothing was saved, the swap files are gone. Nothing is saved "
            "without --save: give it with --save-every N, or give --store NAME.");
  EXPECT_EQ(outcome_text({.steps_done = 3, .steps = 9, .had_swap = true, .store = "s"}),
            "3 of 9 steps done, the store 's' has the last one that was committed. Give the same "
            "command to continue.");
  EXPECT_EQ(outcome_text({.steps_done = 3, .steps = 9, .had_swap = true, .checkpoint = "d/step-2"}),
            "3 of 9 steps done, saved: 'd/step-2'. Give --load d/step-2 in addition to continue.");
  EXPECT_EQ(outcome_text({.steps_done = 3, .steps = 9, .plain = true}),
            "3 of 9 steps done, nothing was saved. --plain saves nothing; leave it out to be able "
            "to.");
  EXPECT_EQ(outcome_text({.steps_done = 9, .steps = 9, .asked_to_save = true, .saved = "d/m"}),
            "9 of 9 steps done, saved: 'd/m'.");
  EXPECT_NE(outcome_text({.steps_done = 1, .steps = 2, .asked_to_save = true}).find("--save-every"),
            std::string::npos);
}

TEST(OutcomeText, AdvisesNoFewerStepsWhereTheFirstOneFailed) {
  for (const bool asked : {true, false}) {
    EXPECT_EQ(outcome_text({.steps = 9, .asked_to_save = asked, .had_swap = true}),
              "0 of 9 steps done, nothing was saved, the swap files are gone.");
  }
}
}  // namespace
}  // namespace train_gpt
