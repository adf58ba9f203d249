/* SPDX-License-Identifier: Apache-2.0
 * c_api_io_test.c: buffers to files and back, in C. argv[1]: a folder on a drive. */
#include "c_host.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static headrace_io* new_io(void) {
  headrace_io* io = NULL;
  EXPECT_OK(headrace_io_create(NULL, &io, &error));
  return io;
}

// [io]
/* Writes `size` bytes to each of two files, and waits for both. */
static void write_two(headrace_io* io, const char* first, const char* second, const void* bytes,
                      uint64_t size) {
  headrace_io_done done[2];
  size_t count = 0, i;
  for (i = 0; i < 2; ++i) headrace_io_done_init(&done[i]);
  EXPECT_OK(headrace_io_write(io, first, 0, bytes, size, 1, &error));
  EXPECT_OK(headrace_io_write(io, second, 0, bytes, size, 2, &error));
  EXPECT_OK(headrace_io_wait(io, 2, -1, done, 2, &count, &error));
  for (i = 0; i < count; ++i)
    if (done[i].code != HEADRACE_OK) fprintf(stderr, "%s\n", done[i].message);
}
// [/io]

static headrace_io_done wait_for_one(headrace_io* io) {
  headrace_io_done done;
  size_t count = 0;
  headrace_io_done_init(&done);
  EXPECT_OK(headrace_io_wait(io, 1, -1, &done, 1, &count, &error));
  EXPECT(count == 1);
  return done;
}

static void brings_bytes_back(const char* folder) {
  enum { kBytes = 100003 };
  char first[4096], second[4096], text[512];
  unsigned char *written = malloc(kBytes), *read = malloc(kBytes);
  uint64_t pending = 9;
  size_t needed = 0;
  int i, fd;
  headrace_io* io = new_io();
  headrace_io_done done;
  for (i = 0; i < kBytes; ++i) written[i] = (unsigned char)(i * 7919 >> 3);
  snprintf(first, sizeof first, "%s/first", folder);
  snprintf(second, sizeof second, "%s/second", folder);
  unlink(first);
  unlink(second);
  write_two(io, first, second, written, kBytes);
  EXPECT_OK(headrace_io_read(io, second, 3, read, kBytes - 3, 5, &error));
  EXPECT_OK(headrace_io_pending(io, &pending, &error));
  EXPECT(pending == 1);
  done = wait_for_one(io);
  EXPECT(done.code == HEADRACE_OK && done.tag == 5 && done.done_bytes == kBytes - 3);
  EXPECT(done.message[0] == 0);
  EXPECT(memcmp(written + 3, read, kBytes - 3) == 0);

  fd = open(first, O_RDWR | O_CLOEXEC);
  EXPECT_OK(headrace_io_write_fd(io, fd, kBytes, written, 10, 6, &error));
  wait_for_one(io);
  EXPECT_OK(headrace_io_read_fd(io, fd, kBytes, read, 20, 7, &error));
  close(fd);
  done = wait_for_one(io);
  EXPECT(done.code == HEADRACE_IO && done.sys_errno == EIO && done.done_bytes == 10);
  EXPECT(strstr(done.message, "the file ends there") != NULL);
  EXPECT(memcmp(written, read, 10) == 0);

  EXPECT_OK(headrace_io_stats_json(io, text, sizeof text, &needed, &error));
  EXPECT(strstr(text, "\"schema_version\":1") != NULL && strstr(text, "\"queue\":\"") != NULL);
  EXPECT_OK(headrace_io_destroy(io, &error));
  unlink(first);
  unlink(second);
  free(written);
  free(read);
}

static void refuses_misuse(const char* folder) {
  char path[4096], bytes[16] = {0};
  headrace_io_options options;
  headrace_io_done done[2];
  headrace_io* io = NULL;
  size_t count = 7;
  headrace_io_options_init(&options);
  options.queue = 2; /* Linux AIO */
  EXPECT_CODE(headrace_io_create(&options, &io, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("options.queue is 2");
  headrace_io_options_init(&options);
  options.queue_depth = 0;
  EXPECT_CODE(headrace_io_create(&options, &io, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_io_create(NULL, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  io = new_io();
  snprintf(path, sizeof path, "%s/none", folder);
  EXPECT_CODE(headrace_io_read(io, path, 0, bytes, sizeof bytes, 1, &error), HEADRACE_IO);
  EXPECT(error.sys_errno == ENOENT);
  EXPECT_CODE(headrace_io_read(io, NULL, 0, bytes, sizeof bytes, 1, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_io_write(io, path, 0, NULL, 8, 1, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_io_wait(io, 3, 0, done, 2, &count, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_WORDS("least is 3");
  done[0].struct_size = done[1].struct_size = 8;
  EXPECT_CODE(headrace_io_wait(io, 1, 0, done, 2, &count, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT_CODE(headrace_io_wait(io, 0, 0, NULL, 0, NULL, &error), HEADRACE_INVALID_ARGUMENT);
  EXPECT(count == 7);
  EXPECT_OK(headrace_io_wait(io, 0, -1, NULL, 0, &count, &error));
  EXPECT(count == 0);
  EXPECT_CODE(headrace_optimizer_destroy((headrace_optimizer*)io, &error),
              HEADRACE_INVALID_ARGUMENT);
  EXPECT_OK(headrace_io_destroy(NULL, &error));
  EXPECT_OK(headrace_io_destroy(io, &error));
  EXPECT_CODE(headrace_io_destroy(io, &error), HEADRACE_INVALID_ARGUMENT);
}

static void belongs_to_its_process(void) {
  int status = 1;
  headrace_io* io = new_io();
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    EXPECT_CODE(headrace_io_write(io, "/dev/null", 0, &byte, 1, 1, &error), HEADRACE_WRONG_STATE);
    EXPECT_CODE(headrace_io_destroy(io, &error), HEADRACE_WRONG_STATE);
#ifndef __SANITIZE_THREAD__ /* it starts no threads after a fork */
    EXPECT_OK(headrace_io_destroy(new_io(), &error));
#endif
    _exit(failures == 0 ? 0 : 1);
  }
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  EXPECT_OK(headrace_io_destroy(io, &error));
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: c_api_io_test FOLDER\n");
    return 2;
  }
  headrace_error_init(&error, message, sizeof message);
  brings_bytes_back(argv[1]);
  refuses_misuse(argv[1]);
  belongs_to_its_process();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
