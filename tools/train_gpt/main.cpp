// SPDX-License-Identifier: Apache-2.0
// main.cpp: train_gpt, the reference trainer.
#include <csignal>

#include "process.hpp"
#include "program/signals.hpp"
#include "ranks/joining.hpp"
#include "run.hpp"

int main(int argc, char** argv) {
  train_gpt::return_freed_memory();
  headrace::tools::install_signal_handlers({SIGINT, SIGTERM});
  train_gpt::install_terminate_handler();
  return train_gpt::run_program(
      argc, argv,
      {train_gpt::warm_up_torch, train_gpt::device_peak, train_gpt::make_offloaded,
       train_gpt::make_plain, headrace::tools::join_ranks, headrace::tools::leave_launch,
       train_gpt::torch_that_threw});
}
