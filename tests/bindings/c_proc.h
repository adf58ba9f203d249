/* SPDX-License-Identifier: Apache-2.0
 * c_proc.h: what this process holds, as /proc tells it. */
#ifndef HEADRACE_TESTS_BINDINGS_C_PROC_H
#define HEADRACE_TESTS_BINDINGS_C_PROC_H
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline int entries_of(const char* folder) {
  DIR* const opened = opendir(folder);
  int count = 0;
  if (opened == NULL) return -1;
  while (readdir(opened) != NULL) ++count;
  closedir(opened);
  return count;
}

/* Of this process, by flock() and the like: "1: FLOCK  ADVISORY  WRITE 4711 08:01:123 0 EOF". */
static inline int locks_held(void) {
  FILE* const locks = fopen("/proc/locks", "r");
  char line[4096];
  int count = 0, process;
  while (locks != NULL && fgets(line, sizeof line, locks) != NULL) {
    if (sscanf(line, "%*s %*s %*s %*s %d", &process) == 1 && process == (int)getpid()) ++count;
  }
  if (locks != NULL) fclose(locks);
  return count;
}

struct held {
  int threads, files, folder_entries, mappings, of_library, locks;
};
/* A thread that was joined may be listed a moment longer: counted again until it is `threads`. */
static inline struct held what_is_held(const char* folder, int threads) {
  struct held held;
  char line[4096];
  int tries;
  FILE* maps;
  memset(&held, 0, sizeof held);
  held.threads = entries_of("/proc/self/task");
  for (tries = 0; threads != 0 && held.threads > threads && tries < 1000; ++tries) {
    usleep(1000);
    held.threads = entries_of("/proc/self/task");
  }
  held.files = entries_of("/proc/self/fd");
  held.folder_entries = entries_of(folder);
  maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    ++held.mappings;
    if (strstr(line, "libheadrace") != NULL || strstr(line, "io_uring") != NULL) ++held.of_library;
  }
  if (maps != NULL) fclose(maps);
  held.locks = locks_held();
  return held;
}
#endif
