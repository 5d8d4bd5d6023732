/* libnvidia-ml: processes, samples, fields. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct proc { long long pid, mem, sm, ts, gi, ci; char list; };

static u64 wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

static int read_procs(const struct call *call, struct proc *to) {
    long long ids[MAX_ITEMS];
    int found = stub_ids(call, "proc.{0}.", ids, MAX_ITEMS);
    for (int i = 0; i < found; i++) {
        struct call one = nvml_about(call->keys[0], ids[i]);
        char value[STUB_VALUE], word[32], *rest = value;
        stub_text(&one, "proc.{0}.{1}", value, sizeof value);
        long long *members[] = {&to[i].pid, &to[i].mem, &to[i].sm, &to[i].ts, &to[i].gi, &to[i].ci};
        for (size_t j = 0; j < sizeof members / sizeof *members; j++)
            *members[j] = nvml_next(&rest, word, sizeof word) ? strtoll(word, NULL, 0) : j == 3 ? 0 : -1;
        to[i].list = nvml_next(&rest, word, sizeof word) ? *word : 0;
    }
    return found;
}

int nvml_processes(const struct call *call, unsigned *count, struct Process *to,
                   struct OldProcess *old, char list) {
    struct proc procs[MAX_ITEMS];
    unsigned known = (unsigned)read_procs(call, procs), found = 0, room = *count;
    for (unsigned i = 0; i < known; i++) {
        const struct proc *p = &procs[i];
        if (p->list && p->list != list) continue;
        if (to && found < room)
            to[found] = (struct Process){(unsigned)p->pid, (u64)p->mem, (unsigned)p->gi, (unsigned)p->ci};
        if (old && found < room) old[found] = (struct OldProcess){(unsigned)p->pid, (u64)p->mem};
        found++;
    }
    *count = found;
    return found && ((!to && !old) || found > room) ? TOO_SMALL : OK;
}

int nvml_busy(const struct call *call, struct Busy *to, unsigned *count, u64 after) {
    struct proc procs[MAX_ITEMS];
    unsigned known = (unsigned)read_procs(call, procs), found = 0, room = *count;
    for (unsigned i = 0; i < known; i++) {
        const struct proc *p = &procs[i];
        u64 time = p->ts ? (u64)p->ts : wall_us(); /* no time stamp: just now */
        if (p->sm == -1 || (p->ts && time <= after)) continue;
        if (to && found < room)
            to[found] = (struct Busy){(unsigned)p->pid, time, (unsigned)p->sm, 0, 0, 0};
        found++;
    }
    *count = found;
    if (!found) return known ? NOT_FOUND : OK;
    return !to || found > room ? TOO_SMALL : OK;
}

int nvml_samples(const struct call *call, unsigned *type, unsigned *count, struct Sample *to) {
    int util[2], kind = (int)call->keys[1];
    if (stub_numbers(call, "gpu.{0}.util", 10, util, 2) < 2 || kind < 1 || kind > 2) return UNSUPPORTED;
    *type = 1, *count = 1;
    if (to) to->time = wall_us(), to->value = (u64)util[kind - 1];
    return OK;
}

static void read_field(const struct call *call, struct FieldValue *to) {
    struct call one = {.key_count = 3, .keys = {call->keys[0], to->id, to->scope}};
    char value[STUB_VALUE], word[64], *rest = value;
    to->code = UNSUPPORTED;
    if (!stub_text(&one, "field.{0}.{1}.{2}", value, sizeof value)) return;
    nvml_next(&rest, word, sizeof word);
    to->type = !strcmp(word, "f64") ? 0 : !strcmp(word, "u32") ? 1 : 3;
    nvml_next(&rest, word, sizeof word);
    to->code = *word == '!' ? atoi(word + 1) : OK;
    double real = atof(word);
    if (to->type) to->value = strtoull(word, NULL, 0);
    else memcpy(&to->value, &real, sizeof real);
}

int nvml_fields(const struct call *call, int count, struct FieldValue *to) {
    for (int i = 0; i < count; i++) read_field(call, &to[i]);
    return OK;
}
