/* SPDX-License-Identifier: Apache-2.0
 * few_lines.c: few_lines.cpp in C. */
#include <headrace/c.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  static char plan[4096];
  const int64_t shape[1] = {4};
  headrace_engine* engine;
  headrace_parameter_spec spec;
  headrace_group group;
  size_t needed;
  const char* found;
  int parameters = 0;
  headrace_parameter_spec_init(&spec);
  spec.name = "w";
  spec.dtype = HEADRACE_F32;
  spec.shape = shape;
  spec.dimensions = 1;
  if (headrace_engine_create(NULL, &engine, NULL) != HEADRACE_OK ||
      headrace_engine_add_group(engine, "g", &spec, 1, &group, NULL) != HEADRACE_OK ||
      headrace_engine_freeze(engine, NULL) != HEADRACE_OK ||
      headrace_engine_plan_json(engine, plan, sizeof plan, &needed, NULL) != HEADRACE_OK) {
    return 1;
  }
  found = strstr(plan, "\"parameters\":");
  if (found == NULL || sscanf(found, "\"parameters\":%d", &parameters) != 1) return 1;
  printf("headrace %s: %d parameters planned\n", headrace_version_text(), parameters);
  return headrace_engine_destroy(engine, NULL);
}
