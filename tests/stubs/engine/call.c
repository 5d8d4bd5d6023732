/* What every call does first: be counted, be logged, and be upset as the scenario says. */
#define _GNU_SOURCE
#include "engine.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 72 }; /* bytes of one line of <scenario>.calls */

static char *counts;

/* The file is mapped: its figures stand also when the process is killed, and go on in the next. */
static void map_counts(void) {
    char path[4096];
    size_t size = (size_t)stub_symbol_count * SLOT;
    int fd = stub_file(".calls", path, sizeof path) ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd < 0) return;
    void *map = ftruncate(fd, (off_t)size) ? MAP_FAILED
        : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) counts = map;
}

static void count_call(int symbol) {
    if (!counts) map_counts();
    if (!counts) return;
    char line[SLOT + 1], *slot = counts + (size_t)symbol * SLOT;
    unsigned long before = *slot ? strtoul(slot + 60, NULL, 10) : 0;
    snprintf(line, sizeof line, "%-60.59s%11lu\n", stub_symbols[symbol], before + 1);
    memcpy(slot, line, SLOT);
}

static void trace_call(const struct call *call) {
    const char *path = stub_trace_env ? getenv(stub_trace_env) : NULL;
    char line[256];
    int length = snprintf(line, sizeof line, "%s", stub_symbols[call->symbol]);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd < 0) return;
    for (int i = 0; i < call->key_count && length < 200; i++)
        if (i >= call->scope_count || call->keys[i] >= 0)
            length += snprintf(line + length, sizeof line - (size_t)length, " %lld", call->keys[i]);
    line[length++] = '\n';
    if (write(fd, line, (size_t)length) < 0) abort();
    close(fd);
}

/* call.<symbol>.<scope>.<what>, call.<symbol>.<what>, call.*.<scope>.<what>: the first there is */
static const char *say(const struct call *call, const char *what, char *path) {
    char scope[64] = "";
    int length = 0;
    for (int i = 0; i < call->scope_count; i++)
        length += snprintf(scope + length, sizeof scope - (size_t)length, "%lld.", call->keys[i]);
    const char *symbol = stub_symbols[call->symbol], *found = NULL;
    snprintf(path, STUB_PATH, "call.%s.%s%s", symbol, scope, what);
    if ((found = stub_take(path))) return found;
    snprintf(path, STUB_PATH, "call.%s.%s", symbol, what);
    if (*scope && (found = stub_take(path))) return found;
    snprintf(path, STUB_PATH, "call.*.%s%s", scope, what);
    return *scope ? stub_take(path) : NULL;
}

static long long number(const struct call *call, const char *what, long long otherwise) {
    char path[STUB_PATH];
    const char *found = stub_behaves() ? say(call, what, path) : NULL;
    return found ? strtoll(found, NULL, 0) : otherwise;
}

static void pause_ms(long long ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left)) {}
}

/* As long as the scenario says so: a driver that hangs may come back. */
static void hang(const char *path) {
    for (const char *still = path; still;) {
        pause_ms(10);
        stub_lock();
        stub_reload();
        still = stub_find(path);
        stub_unlock();
    }
}

static int done(struct call *call, int code) {
    call->code = code;
    return 1;
}

int stub_enter(struct call *call) {
    char hung[STUB_PATH];
    stub_lock();
    stub_reload();
    count_call(call->symbol);
    trace_call(call);
    long long late_ms = number(call, "sleep_ms", 0), signal_number = number(call, "abort", 0);
    const char *hangs = stub_behaves() ? say(call, "hang", hung) : NULL;
    long long byte = number(call, "fill", -1), code = number(call, "ret", INT64_MIN);
    stub_unlock();
    if (late_ms > 0) pause_ms(late_ms);
    if (signal_number == SIGSEGV) raise(SIGSEGV);
    if (signal_number) abort();
    if (hangs) hang(hung);
    for (int i = 0; byte >= 0 && i < STUB_OUTS; i++)
        if (call->outs[i].at) memset(call->outs[i].at, (int)byte, call->outs[i].bytes);
    if (code != INT64_MIN) return done(call, (int)code);
    if (byte >= 0) return done(call, 0);
    for (int i = 0; i < call->scope_count; i++)
        if (call->keys[i] < 0 && stub_bad_handle) return done(call, stub_bad_handle);
    return 0;
}
