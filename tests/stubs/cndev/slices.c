/* libcndev: sMLU profiles and instances, which outlive the process as a driver's do. */
#include "cndev.h"

#include <stdio.h>
#include <string.h>

#define PROFILE "mlu.{0}.profile."
#define SLICE "mlu.{0}.smlu."

int cndev_set_mode(struct call *call, const struct Mode *to) {
    stub_put(call, "mlu.{0}.smlu_mode", to->mode ? "1" : "0");
    return OK;
}

static struct call about(const struct call *call, long long second) {
    struct call one = {.key_count = 2, .keys = {call->keys[0], second}};
    return one;
}

static int slice_of(const struct call *call, long long number, long long *profile,
                    unsigned *quota, unsigned long long *bytes, unsigned *used,
                    unsigned long long *used_bytes) {
    char value[STUB_VALUE];
    struct call one = about(call, number);
    *used = 0, *used_bytes = 0;
    if (!stub_text(&one, SLICE "{1}", value, sizeof value)) return 0;
    return sscanf(value, "%lld:%u:%llu:%u:%llu", profile, quota, bytes, used, used_bytes) >= 3;
}

static int profile_of(const struct call *call, long long id, unsigned *quota,
                      unsigned long long *bytes, unsigned *slots) {
    char value[STUB_VALUE];
    struct call one = about(call, id);
    *slots = 0;
    if (!stub_text(&one, PROFILE "{1}", value, sizeof value)) return 0;
    int found = sscanf(value, "%u:%llu:%u", quota, bytes, slots);
    if (found == 2) *slots = *quota ? 100 / *quota : 0;
    return found >= 2;
}

static unsigned users(const struct call *call, long long id) {
    long long numbers[STUB_ITEMS], profile;
    unsigned quota, used, count = 0;
    unsigned long long bytes, used_bytes;
    int found = stub_ids(call, SLICE, numbers, STUB_ITEMS);
    for (int i = 0; i < found; i++)
        count += slice_of(call, numbers[i], &profile, &quota, &bytes, &used, &used_bytes)
            && profile == id;
    return count;
}

int cndev_slices(struct call *call, int *number, struct SMlu *to) {
    long long numbers[STUB_ITEMS];
    int room = *number;
    *number = stub_ids(call, SLICE, numbers, STUB_ITEMS);
    if (*number > room || (*number && !to)) return stub_too_small;
    for (int i = 0; i < *number; i++) {
        struct SMlu *one = &to[i];
        unsigned long long bytes = 0, used = 0;
        long long profile = 0;
        slice_of(call, numbers[i], &profile, &one->quota[0], &bytes, &one->quota[1], &used);
        one->profile = (int32_t)profile, one->instance = (int32_t)numbers[i];
        one->memory[0] = bytes, one->memory[1] = used;
        snprintf(one->uuid, sizeof one->uuid, "%08llx-0000-4000-8000-%012llx",
                 (unsigned long long)call->keys[0], (unsigned long long)numbers[i]);
        snprintf(one->profile_name, sizeof one->profile_name, "%um.%llumb", one->quota[0],
                 bytes >> 20);
        snprintf(one->dev_node, sizeof one->dev_node, "/dev/cambricon-caps/cap_dev%lld_mi%lld",
                 call->keys[0], numbers[i]);
    }
    return OK;
}

int cndev_profile_ids(struct call *call, struct ProfIds *to) {
    long long ids[128];
    to->count = stub_ids(call, PROFILE, ids, 128);
    for (int i = 0; i < to->count; i++) to->id[i] = (int32_t)ids[i];
    return OK;
}

int cndev_profile(struct call *call, struct Prof *to) {
    unsigned long long bytes;
    unsigned quota, slots;
    if (!profile_of(call, call->keys[1], &quota, &bytes, &slots)) return NOT_FOUND;
    unsigned taken = users(call, call->keys[1]);
    to->id = (int32_t)call->keys[1];
    to->total = slots, to->remain = taken < slots ? slots - taken : 0;
    to->quota[0] = quota, to->quota[1] = 0, to->memory[0] = bytes, to->memory[1] = 0;
    snprintf(to->name, sizeof to->name, "%um.%llumb", quota, bytes >> 20);
    return OK;
}

static long long lowest_free(const struct call *call, const char *prefix, long long from) {
    long long ids[STUB_ITEMS];
    int found = stub_ids(call, prefix, ids, STUB_ITEMS);
    for (int i = 0; i < found; i++)
        if (ids[i] == from) from++;
    return from;
}

int cndev_add_profile(struct call *call, const struct Set *wanted, int *id) {
    long long ids[STUB_ITEMS];
    unsigned long long bytes;
    unsigned quota, slots;
    int found = stub_ids(call, PROFILE, ids, STUB_ITEMS);
    for (int i = 0; i < found; i++)
        if (profile_of(call, ids[i], &quota, &bytes, &slots) && quota == wanted->quota
            && bytes == wanted->memory) return DUPLICATE;
    char value[64];
    struct call one = about(call, lowest_free(call, PROFILE, 0));
    snprintf(value, sizeof value, "%u:%llu", wanted->quota, (unsigned long long)wanted->memory);
    stub_put(&one, PROFILE "{1}", value);
    *id = (int)one.keys[1];
    return OK;
}

int cndev_drop_profile(struct call *call) {
    unsigned long long bytes;
    unsigned quota, slots;
    if (!profile_of(call, call->keys[1], &quota, &bytes, &slots)) return NOT_FOUND;
    if (users(call, call->keys[1])) return IN_USE;
    stub_put(call, PROFILE "{1}", NULL);
    return OK;
}

int cndev_add_slice(struct call *call, int32_t *to) {
    unsigned long long bytes;
    unsigned quota, slots;
    char value[96];
    if (!profile_of(call, call->keys[1], &quota, &bytes, &slots)) return NOT_FOUND;
    if (users(call, call->keys[1]) >= slots) return BAD_ARGUMENT;
    struct call one = about(call, lowest_free(call, SLICE, 1));
    snprintf(value, sizeof value, "%lld:%u:%llu", call->keys[1], quota, bytes);
    stub_put(&one, SLICE "{1}", value);
    *to = (int32_t)(one.keys[1] << 8 | call->keys[0]);
    return OK;
}

int cndev_drop_slice(int32_t slice) {
    struct call one = {.key_count = 2, .keys = {slice & 0xFF, slice >> 8}};
    char value[STUB_VALUE];
    if (!stub_text(&one, SLICE "{1}", value, sizeof value)) return NOT_FOUND;
    stub_put(&one, SLICE "{1}", NULL);
    return OK;
}

int cndev_set_slice(int32_t slice, const struct Set *wanted) {
    struct call one = {.key_count = 2, .keys = {slice & 0xFF, slice >> 8}};
    unsigned long long bytes, used_bytes;
    unsigned quota, used;
    long long profile;
    char value[96];
    if (!slice_of(&one, one.keys[1], &profile, &quota, &bytes, &used, &used_bytes)) return NOT_FOUND;
    snprintf(value, sizeof value, "%lld:%u:%llu", profile, wanted->quota,
             (unsigned long long)wanted->memory);
    stub_put(&one, SLICE "{1}", value);
    return OK;
}
