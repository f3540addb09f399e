/*
Modules: the command CARD_TRANSLATE compiles PTX to a shared library, once; the library is cached in CARD_CACHE.
*/
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime.h"

struct Module { Kernel *kernels; u32 count; };

static u64 hash(const char *text) {
  u64 h = 1469598103934665603ull;
  while (*text) h = (h ^ (u8)*text++) * 1099511628211ull;
  return h;
}
static int number_after(const char *text, const char *word) {
  const char *at = strstr(text, word);
  return at ? atoi(at + strlen(word)) : 0;
}
/* The PTX version as a number: 87 for "8.7". */
static int version(const char *text) {
  const char *at = strstr(text, ".version ");
  int major = 0, minor = 0;
  if (at) sscanf(at, ".version %d.%d", &major, &minor);
  return 10 * major + minor;
}
static int translate(const char *ptx, const char *library) {
  const char *program = getenv("CARD_TRANSLATE");
  char source[600], made[600], command[4096];
  if (!program) { say("CARD_TRANSLATE names no program that translates PTX"); return INVALID_PTX; }
  snprintf(source, sizeof source, "%s.%d.ptx", library, getpid());
  snprintf(made, sizeof made, "%s.%d", library, getpid());
  FILE *file = fopen(source, "w");
  if (!file) { say("%s: cannot be written", source); return INVALID_PTX; }
  fputs(ptx, file), fclose(file);
  snprintf(command, sizeof command, "env -u LD_LIBRARY_PATH -u LD_PRELOAD %s '%s' '%s' 2> '%s.err'", program,
    source, made, made);
  int failed = system(command);
  snprintf(command, sizeof command, "%s.err", made);
  char why[700] = "";
  if ((file = fopen(command, "r"))) { why[fread(why, 1, sizeof why - 1, file)] = 0; fclose(file), unlink(command); }
  if (failed) { say("%s", why); return INVALID_PTX; }
  if (!setting("KEEP", 0)) unlink(source);
  return rename(made, library) ? INVALID_PTX : OK;
}
int load_module(const char *ptx, Module **module) {
  char library[512];
  struct stat stat_;
  const char *cache = getenv("CARD_CACHE");
  int sm = setting("SM", 80), target = number_after(ptx, ".target sm_");
  if (!memcmp(ptx, "\x7f" "ELF", 4)) { say("a cubin, which is not PTX"); return NO_BINARY_FOR_GPU; }
  if (version(ptx) > setting("PTX", 999)) {
    note("PTX %d is newer than the driver's", version(ptx));
    return UNSUPPORTED_PTX_VERSION;
  }
  if (target > sm) { say("PTX for sm_%d on a card of sm_%d", target, sm); return NO_BINARY_FOR_GPU; }
  snprintf(library, sizeof library, "%s/%016llx.so", cache && *cache ? cache : "/tmp", hash(ptx));
  int status = stat(library, &stat_) ? translate(ptx, library) : OK;
  if (status) return status;
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  const Entry *entries = handle ? dlsym(handle, "ENTRIES") : NULL;
  if (!entries) { say("%s", dlerror()); return INVALID_PTX; }
  Module *m = calloc(1, sizeof *m);
  while (entries[m->count].name) {
    m->kernels = grown(m->kernels, m->count, sizeof(Kernel));
    m->kernels[m->count] = (Kernel){&entries[m->count], 0};
    if (entries[m->count++].shared_bytes <= 48 << 10) continue;
    say("%s: more than 48 KB of shared memory", entries[m->count - 1].name);
    return INVALID_PTX;
  }
  *module = m;  /* never unloaded: graphs may hold its kernels */
  return OK;
}
Kernel *find_kernel(Module *m, const char *name) {
  for (u32 i = 0; i < m->count; i++) if (!strcmp(m->kernels[i].entry->name, name)) return &m->kernels[i];
  return NULL;
}
