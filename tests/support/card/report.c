/* Settings from environment variables, and findings: program behaviour that no GPU guarantees to work. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "runtime.h"

long setting(const char *name, long otherwise) {
  char full[64];
  snprintf(full, sizeof full, "CARD_%s", name);
  const char *text = getenv(full);
  return text && *text ? atol(text) : otherwise;
}

static char kept[1 << 16];
const char *findings(void) { return kept; }
void forget_findings(void) { kept[0] = 0; }

static void log_line(const char *line) {
  const char *path = getenv("CARD_LOG");
  FILE *file = path && *path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%d %s\n", getpid(), line);
  fclose(file);
}
void say(const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  size_t used = strlen(kept), more = strlen(line);
  if (used + more + 2 < sizeof kept) sprintf(kept + used, "%s\n", line);
  if (!setting("QUIET", 0)) fprintf(stderr, "card: %s\n", line);
  log_line(line);
}
void note(const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  log_line(line);
}

u32 chance(u32 below) {
  static u64 state;
  if (!state) state = 0x9e3779b97f4a7c15ull * (2 * setting("SEED", 1) + 1);
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)((state >> 33) % below);
}

void *grown(void *list, size_t count, size_t size) {
  if (count & (count - 1)) return list;
  return realloc(list, (count ? 2 * count : 1) * size);
}
