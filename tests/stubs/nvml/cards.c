/* libnvidia-ml: handles of cards and instances, and what is asked of a card but one member. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static char cards[MAX_GPUS], slots[MAX_GPUS][MAX_MIGS]; /* only their addresses count */

struct call nvml_about(long long first, long long second) {
    struct call one = {.key_count = 2, .keys = {first, second}};
    return one;
}

static int here(long long card) {
    struct call one = nvml_about(card, 0);
    return card >= 0 && card < MAX_GPUS && nvml_get(&one, "gpu.{0}", 0);
}

long long nvml_card(void *device) {
    long long card = (char *)device - cards;
    return here(card) ? card : -1;
}

long long nvml_owner(mig *device) {
    long long slot = (char *)device - &slots[0][0];
    if (slot >= 0 && slot < (long long)sizeof slots) return here(slot / MAX_MIGS) ? slot / MAX_MIGS : -1;
    return nvml_card(device);
}

int nvml_slot(const void *device) {
    long long slot = (const char *)device - &slots[0][0];
    if (slot < 0 || slot >= (long long)sizeof slots) return -1;
    struct call one = nvml_about(slot / MAX_MIGS, slot % MAX_MIGS);
    return nvml_get(&one, "mig.{0}.{1}", 0) ? (int)(slot % MAX_MIGS) : -1;
}

void *nvml_card_handle(long long card) { return &cards[card]; }
void *nvml_mig_handle(long long card, long long slot) { return &slots[card][slot]; }

long long nvml_number(uint32_t card) { return card; }

/* 00000000:23:00.0 and 0000:23:00.0 are the same card */
static const char *tail(const char *bus) {
    size_t length = strlen(bus);
    return length > 12 ? bus + length - 12 : bus;
}

long long nvml_by_bus(const char *bus) {
    char known[64];
    for (long long card = 0; card < MAX_GPUS; card++) {
        struct call one = nvml_about(card, 0);
        if (here(card) && stub_text(&one, "gpu.{0}.bus", known, sizeof known)
            && !strcasecmp(tail(known), tail(bus))) return card;
    }
    return NOWHERE;
}

long long nvml_get(const struct call *call, const char *path, long long otherwise) {
    long long found;
    return stub_number(call, path, 0, &found) ? found : otherwise;
}

int nvml_member(const struct call *call, const char *path, unsigned *to) {
    long long found;
    if (!stub_number(call, path, 0, &found)) return UNSUPPORTED;
    *to = (unsigned)found;
    return OK;
}

int nvml_next(char **rest, char *word, size_t room) {
    char *end = *rest ? strchr(*rest, ';') : NULL;
    int length = *rest ? (int)(end ? end - *rest : (long)strlen(*rest)) : 0;
    snprintf(word, room, "%.*s", length, *rest ? *rest : "");
    *rest = end ? end + 1 : NULL;
    return *word != 0;
}

const char *nvml_error(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvml_version(char *to, unsigned room) {
    struct call one = nvml_about(0, 0);
    char driver[96];
    if (!stub_text(&one, "system.driver", driver, sizeof driver)) return UNSUPPORTED;
    return snprintf(to, room, "12.%s", driver) < (int)room ? OK : TOO_SMALL;
}

int nvml_count(unsigned *to) {
    *to = 0;
    for (long long card = 0; card < MAX_GPUS; card++) *to += here(card);
    return OK;
}

/* The first handle of a card in a process wakes it, unless persistence mode keeps it awake */
static void attach(const struct call *call) {
    static char attached[MAX_GPUS];
    long long ms = nvml_get(call, "gpu.{0}.attach_ms", 0);
    if (!attached[call->keys[0]] && !nvml_get(call, "gpu.{0}.persistence", 0)) usleep((useconds_t)ms * 1000);
    attached[call->keys[0]] = 1;
}

int nvml_handle(const struct call *call, void **to) {
    if (call->keys[0] == NOWHERE) return NOT_FOUND;
    if (!here(call->keys[0])) return INVALID;
    attach(call);
    *to = nvml_card_handle(call->keys[0]);
    return OK;
}

static int named(long long card, long long slot, const char *path, const char *uuid) {
    struct call one = nvml_about(card, slot);
    char known[128];
    return stub_text(&one, path, known, sizeof known) && !strcmp(known, uuid);
}

int nvml_by_uuid(const char *uuid, void **to) {
    *to = NULL;
    for (long long card = 0; card < MAX_GPUS; card++) {
        if (!here(card)) continue;
        if (named(card, 0, "gpu.{0}.uuid", uuid)) *to = nvml_card_handle(card);
        for (long long slot = 0; slot < MAX_MIGS; slot++)
            if (named(card, slot, "mig.{0}.{1}.uuid", uuid)) *to = nvml_mig_handle(card, slot);
    }
    return *to ? OK : NOT_FOUND;
}

int nvml_uuid(const struct call *call, mig *instance, char *to, unsigned room) {
    struct call one = nvml_about(call->keys[0], nvml_slot(instance));
    const char *path = one.keys[1] < 0 ? "gpu.{0}.uuid" : "mig.{0}.{1}.uuid";
    struct fill from = {path, NULL, 0, 1, 0, STUB_CHARS, 0, -1, ':', 1};
    return stub_string(&one, &from, to, room);
}

int nvml_index(const struct call *call, unsigned *to) {
    *to = (unsigned)call->keys[0];
    return OK;
}

int nvml_pci(const struct call *call, struct Pci *to) {
    memset(to, 0, sizeof *to);
    stub_text(call, "gpu.{0}.bus", to->bus_id, sizeof to->bus_id);
    snprintf(to->legacy, sizeof to->legacy, "%s", tail(to->bus_id));
    to->id = 0x233010de;
    return OK;
}

int nvml_any_memory(const struct call *call, mig *instance, struct MemoryV1 *to) {
    struct call one = nvml_about(call->keys[0], nvml_slot(instance));
    if (one.keys[1] < 0) return nvml_memory(call, to, NULL);
    to->total = (u64)nvml_get(&one, "mig.{0}.{1}.mb", 0) << 20;
    to->used = (u64)nvml_get(&one, "mig.{0}.{1}.used", 0);
    to->free = to->total - to->used;
    return OK;
}

/* Version 1 counts the reserve as used */
int nvml_memory(const struct call *call, struct MemoryV1 *first, struct MemoryV2 *second) {
    long long total = nvml_get(call, "gpu.{0}.mem", -1), used = nvml_get(call, "gpu.{0}.used", 0);
    long long reserved = nvml_get(call, "gpu.{0}.reserved", 0);
    if (total == -1) return UNSUPPORTED;
    if (first) {
        first->total = (u64)total, first->used = (u64)(used + reserved);
        first->free = first->total - first->used;
        return OK;
    }
    second->total = (u64)total, second->used = (u64)used, second->reserved = (u64)reserved;
    second->free = second->total - second->used - second->reserved;
    return OK;
}

int nvml_platform(const struct call *call, struct Platform *to) {
    char chassis[96] = {0};
    int numbers[4] = {0};
    if (!stub_text(call, "gpu.{0}.chassis", chassis, sizeof chassis)) return UNSUPPORTED;
    memcpy(to->chassis, chassis, sizeof to->chassis);
    stub_numbers(call, "gpu.{0}.rack", 10, numbers, 4);
    for (int i = 0; i < 4; i++) to->numbers[i] = (unsigned char)numbers[i];
    return OK;
}
