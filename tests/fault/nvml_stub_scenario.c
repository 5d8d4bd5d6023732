/* The scenario: its text becomes the state that calls answer from. */
#include "nvml_stub.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct scenario stub;

static struct scenario next; /* being read; replaces the other whole */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec read_at;
static off_t read_size = -1;

enum { MAX_WORDS = 40, LINE = 2048 };

/* Split a line at blanks outside quotes; \xNN inside quotes is that byte. */
static int split(char *line, char *words[]) {
    int count = 0;
    char *from = line, *to = line;
    while (*from && *from != '#' && count < MAX_WORDS) {
        while (*from == ' ' || *from == '\t' || *from == '\n') from++;
        if (!*from || *from == '#') break;
        int quoted = 0;
        words[count++] = to = from;
        for (; *from && (quoted || !strchr(" \t\n", *from)); from++) {
            if (*from == '"') {
                quoted = !quoted;
            } else if (quoted && from[0] == '\\' && from[1] == 'x' && from[2] && from[3]) {
                char digits[3] = {from[2], from[3], 0};
                *to++ = (char)strtol(digits, NULL, 16);
                from += 3;
            } else {
                *to++ = *from;
            }
        }
        if (*from) from++;
        *to = 0;
    }
    return count;
}

static const char *value(char *words[], int count, const char *key) {
    size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=') return words[i] + length + 1;
    return NULL;
}

static void set_number(number *to, char *words[], int count, const char *key) {
    const char *found = value(words, count, key);
    if (found) *to = !strcmp(found, "na") ? UNSET : strtoll(found, NULL, 0);
}

static void set_text(char *to, size_t room, char *words[], int count, const char *key) {
    const char *found = value(words, count, key);
    if (found) snprintf(to, room, "%s", found);
}

#define NUMBER(to, key) set_number(&(to), words, count, key)
#define WORD(to, key) set_text(to, sizeof to, words, count, key)

static void pair(number *a, number *b, char *words[], int count, const char *key, char between) {
    const char *found = value(words, count, key), *second = found ? strchr(found, between) : NULL;
    if (found) *a = strtoll(found, NULL, 10);
    if (second) *b = strtoll(second + 1, NULL, 10);
}

static void new_gpu(struct gpu *g) {
    memset(g, 0, sizeof *g);
    g->used = 1;
    number *unset[] = {&g->minor, &g->module, &g->mem, &g->util_gpu, &g->util_mem, &g->power,
        &g->temp, &g->arch, &g->cc_major, &g->cc_minor, &g->virt, &g->ecc, &g->persistence,
        &g->mode, &g->pstate, &g->width, &g->max_width, &g->sm_clock, &g->mem_clock, &g->energy,
        &g->throttle, &g->migmode, &g->migpending, &g->remap[0], &g->events, &g->addressing,
        &g->numa_node, &g->sram, &g->repair, &g->unrepairable, &g->encoder, &g->decoder,
        &g->uncorrected};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) *unset[i] = UNSET;
    for (int i = 0; i < MAX_GPUS; i++) g->ancestors[i] = UNSET;
}

static void read_gpu(struct gpu *g, char *words[], int count) {
    if (!g->used) new_gpu(g);
    WORD(g->uuid, "uuid"); WORD(g->bus, "bus"); WORD(g->name, "name");
    WORD(g->serial, "serial"); WORD(g->vbios, "vbios");
    NUMBER(g->minor, "minor"); NUMBER(g->module, "module"); NUMBER(g->mem, "mem");
    NUMBER(g->reserved, "reserved"); NUMBER(g->used_mem, "used"); NUMBER(g->power, "power");
    NUMBER(g->temp, "temp"); NUMBER(g->arch, "arch"); NUMBER(g->virt, "virt");
    NUMBER(g->ecc, "ecc"); NUMBER(g->persistence, "persistence"); NUMBER(g->mode, "mode");
    NUMBER(g->pstate, "pstate"); NUMBER(g->width, "width"); NUMBER(g->max_width, "maxwidth");
    NUMBER(g->sm_clock, "sm"); NUMBER(g->mem_clock, "memclock"); NUMBER(g->energy, "energy");
    NUMBER(g->throttle, "throttle"); NUMBER(g->migmode, "migmode"); NUMBER(g->events, "events");
    NUMBER(g->migpending, "migpending"); NUMBER(g->addressing, "addressing");
    NUMBER(g->numa_node, "numanode"); WORD(g->chassis, "chassis");
    NUMBER(g->sram, "sram"); NUMBER(g->repair, "repair"); NUMBER(g->encoder, "encoder");
    NUMBER(g->decoder, "decoder"); NUMBER(g->unrepairable, "unrepairable");
    NUMBER(g->uncorrected, "uncorrected");
    const char *rack = value(words, count, "rack");
    if (rack) sscanf(rack, "%lld,%lld,%lld,%lld", &g->rack[0], &g->rack[1], &g->rack[2], &g->rack[3]);
    pair(&g->util_gpu, &g->util_mem, words, count, "util", ',');
    pair(&g->cc_major, &g->cc_minor, words, count, "cc", '.');
    const char *remap = value(words, count, "remap");
    if (remap) sscanf(remap, "%lld,%lld,%lld,%lld", &g->remap[0], &g->remap[1], &g->remap[2], &g->remap[3]);
}

static void read_mig(struct gpu *g, int index, char *words[], int count) {
    int slot = count > 2 ? atoi(words[2]) : 0;
    if (slot < 0 || slot >= MAX_MIGS) return;
    struct mig *m = &g->migs[slot];
    m->used = 1, m->gpu = index;
    WORD(m->uuid, "uuid");
    NUMBER(m->gi, "gi"); NUMBER(m->ci, "ci"); NUMBER(m->k, "k"); NUMBER(m->cik, "cik");
    NUMBER(m->start, "start"); NUMBER(m->size, "size"); NUMBER(m->mb, "mb"); NUMBER(m->sm, "sm");
}

static void read_profile(struct gpu *g, char *words[], int count) {
    int k = count > 2 ? atoi(words[2]) : 0;
    if (k < 0 || k >= MAX_PROFILES) return;
    struct profile *p = &g->profiles[k];
    p->used = 1;
    WORD(p->name, "name");
    NUMBER(p->id, "id"); NUMBER(p->slices, "slices"); NUMBER(p->max, "max"); NUMBER(p->mb, "mb");
    NUMBER(p->size, "size");
    const char *from = value(words, count, "starts");
    for (p->places = 0; from && *from && p->places < 8; p->places++) {
        p->starts[p->places] = atoll(from);
        from = strchr(from, ',');
        if (from) from++;
    }
}

static void read_proc(struct gpu *g, char *words[], int count) {
    if (g->proc_count == MAX_PROCS) return;
    struct proc *p = &g->procs[g->proc_count++];
    p->mem = p->sm = p->gi = p->ci = UNSET;
    const char *list = value(words, count, "list");  /* compute, graphics, mps; else all */
    p->list = list ? *list : 0;
    NUMBER(p->pid, "pid"); NUMBER(p->mem, "mem"); NUMBER(p->sm, "sm");
    NUMBER(p->ts, "ts"); NUMBER(p->gi, "gi"); NUMBER(p->ci, "ci");
}

static void read_link(struct gpu *g, char *words[], int count) {
    int l = count > 2 ? atoi(words[2]) : 0;
    if (l < 0 || l >= MAX_LINKS) return;
    struct link *k = &g->links[l];
    k->used = 1, k->type = 255;
    NUMBER(k->state, "state"); NUMBER(k->type, "type"); WORD(k->remote, "remote");
}

static void read_field(struct gpu *g, char *words[], int count) {
    if (count < 4 || g->field_count == MAX_FIELDS) return;
    struct field *f = NULL;
    char *colon = strchr(words[2], ':');
    number id = atoll(words[2]), scope = colon ? strtoll(colon + 1, NULL, 0) : 0;
    for (int i = 0; i < g->field_count; i++)
        if (g->fields[i].id == id && g->fields[i].scope == scope) f = &g->fields[i];
    if (!f) f = &g->fields[g->field_count++];
    memset(f, 0, sizeof *f);
    f->id = id, f->scope = scope;
    const char *last = words[count - 1];
    f->type = !strcmp(words[3], "f64") ? 0 : !strcmp(words[3], "u32") ? 1 : 3;
    f->code = *last == '!' ? atoi(last + 1) : 0;
    f->f64 = atof(last), f->whole = strtoull(last, NULL, 0);
}

static void read_fabric(struct gpu *g, char *words[], int count) {
    struct fabric *f = &g->fabric;
    f->used = 1;
    NUMBER(f->state, "state"); NUMBER(f->status, "status"); NUMBER(f->clique, "clique");
    NUMBER(f->mask, "mask"); NUMBER(f->summary, "summary");
    const char *uuid = value(words, count, "uuid");
    for (int i = 0; uuid && i < 16 && uuid[2 * i] && uuid[2 * i + 1]; i++) {
        char digits[3] = {uuid[2 * i], uuid[2 * i + 1], 0};
        f->uuid[i] = (unsigned char)strtol(digits, NULL, 16);
    }
}

static void read_gpm(struct gpu *g, char *words[], int count) {
    if (count < 4 || g->gpm_count == MAX_GPMS) return;
    struct gpm *p = &g->gpms[g->gpm_count++];
    p->gi = UNSET, p->id = atoll(words[2]), p->value = atof(words[count - 1]);
    NUMBER(p->gi, "gi");
}

static void read_event(int gpu, char *words[], int count) {
    int *known = gpu == UNSET ? &next.binding_count : &next.event_count;
    if (*known == MAX_EVENTS) return;
    struct event *e = gpu == UNSET ? &next.bindings[(*known)++] : &next.events[(*known)++];
    memset(e, 0, sizeof *e);
    e->gpu = gpu, e->gi = e->ci = 0xFFFFFFFF;
    NUMBER(e->type, "type"); NUMBER(e->data, "data"); NUMBER(e->gi, "gi"); NUMBER(e->ci, "ci");
    const char *at = value(words, count, "at");
    e->at = at ? atof(at) : 0;
}

static void read_fault(char *words[], int count) {
    if (count < 2 || next.fault_count == MAX_FAULTS) return;
    struct fault *f = &next.faults[next.fault_count++];
    memset(f, 0, sizeof *f);
    snprintf(f->symbol, TEXT, "%s", words[1]);
    f->gpu = UNSET, f->left = -1;
    int last = count;
    if (count > 2 && words[count - 1][0] == 'x') f->left = atoi(words[--last] + 1);
    if (!strcmp(words[0], "error")) {
        f->kind = FAULT_ERROR, f->code = atoi(words[last - 1]);
        if (last == 4) f->gpu = atoi(words[2]);
    } else if (!strcmp(words[0], "delay")) {
        f->kind = FAULT_DELAY, f->ms = count > 2 ? atoll(words[2]) : 0;
    } else {
        f->kind = !strcmp(words[0], "hang") ? FAULT_HANG : FAULT_CRASH;
        if (last == 3) f->gpu = atoi(words[2]);
    }
}

static void read_statement(char *words[], int count) {
    const char *what = words[0];
    if (!strcmp(what, "system")) {
        WORD(next.driver, "driver");
        NUMBER(next.cuda, "cuda");
        NUMBER(next.confidential, "confidential"); NUMBER(next.ready, "ready");
        return;
    }
    if (!strcmp(what, "binding")) {
        read_event(UNSET, words, count);
        return;
    }
    if (strstr("error delay hang crash", what)) {
        read_fault(words, count);
        return;
    }
    int index = count > 1 ? atoi(words[1]) : -1;
    if (index < 0 || index >= MAX_GPUS) return;
    struct gpu *g = &next.gpus[index];
    if (!strcmp(what, "gpu")) read_gpu(g, words, count);
    else if (!strcmp(what, "mig")) read_mig(g, index, words, count);
    else if (!strcmp(what, "profile")) read_profile(g, words, count);
    else if (!strcmp(what, "proc")) read_proc(g, words, count);
    else if (!strcmp(what, "link")) read_link(g, words, count);
    else if (!strcmp(what, "field")) read_field(g, words, count);
    else if (!strcmp(what, "fabric")) read_fabric(g, words, count);
    else if (!strcmp(what, "gpm")) read_gpm(g, words, count);
    else if (!strcmp(what, "event")) read_event(index, words, count);
    else if (!strcmp(what, "lost")) g->lost = 1;
    else if (!strcmp(what, "ancestor") && count > 3) {
        int other = atoi(words[2]);
        if (other < 0 || other >= MAX_GPUS) return;
        g->ancestors[other] = next.gpus[other].ancestors[index] = atoi(words[3]);
    }
}

static void reload(void) {
    const char *path = getenv("XPU_NVML_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_size == read_size && !memcmp(&now.st_mtim, &read_at, sizeof read_at)) return;
    read_size = now.st_size, read_at = now.st_mtim;
    memset(&next, 0, sizeof next);
    FILE *file = fopen(path, "r");
    char line[LINE], *words[MAX_WORDS];
    while (file && fgets(line, sizeof line, file)) {
        int count = split(line, words);
        if (count) read_statement(words, count);
    }
    if (file) fclose(file);
    stub = next;
}

void stub_reload(void) {
    pthread_mutex_lock(&lock);
    reload();
    pthread_mutex_unlock(&lock);
}
