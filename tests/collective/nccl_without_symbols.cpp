// SPDX-License-Identifier: Apache-2.0
// nccl_without_symbols.cpp: a library that says it is NCCL, and has nothing else of it.
extern "C" int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
