/* libnvidia-ml: MIG instances, their profiles and where they may sit. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PROFILES = 18 };

static struct call about(mig *instance) {
    return nvml_about(nvml_owner(instance), nvml_slot(instance));
}

int nvml_mig_mode(const struct call *call, unsigned *now, unsigned *pending) {
    int code = nvml_member(call, "gpu.{0}.migmode", now);
    if (!code && nvml_member(call, "gpu.{0}.migpending", pending)) *pending = *now;
    return code;
}

int nvml_most(const struct call *call, unsigned *to) {
    *to = nvml_get(call, "gpu.{0}.migmode", -1) == 1 ? 7 : 0;
    return OK;
}

int nvml_mig(const struct call *call, void **to) {
    if (call->keys[1] >= MAX_MIGS || !nvml_get(call, "mig.{0}.{1}", 0)) return NOT_FOUND;
    if (nvml_get(call, "mig.{0}.{1}.ci", 0) == -1) return NOT_FOUND; /* no device by itself */
    *to = nvml_mig_handle(call->keys[0], call->keys[1]);
    return OK;
}

int nvml_mig_member(mig *instance, const char *member, unsigned *to) {
    struct call one = about(instance);
    char path[64];
    snprintf(path, sizeof path, "mig.{0}.{1}.%s", member);
    *to = (unsigned)nvml_get(&one, path, 0);
    return one.keys[1] < 0 ? INVALID : *to == (unsigned)-1 ? UNSUPPORTED : OK;
}

int nvml_parent(mig *instance, void **to) {
    struct call one = about(instance);
    if (one.keys[1] < 0) return INVALID;
    *to = nvml_card_handle(one.keys[0]);
    return OK;
}

static unsigned slices(long long k) {
    static const unsigned known[] = {1, 2, 3, 4, 7, 8, 6, 1, 2, 1, 1, 2, 4, 1, 2, 1, 2, 3};
    return k >= 0 && k < MAX_PROFILES ? known[k] : 1;
}

int nvml_attributes(mig *instance, struct Attributes *to) {
    static const unsigned compute[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    struct call one = about(instance);
    if (one.keys[1] < 0) return INVALID;
    memset(to, 0, sizeof *to);
    to->sm = (unsigned)nvml_get(&one, "mig.{0}.{1}.sm", 0);
    to->mb = (u64)nvml_get(&one, "mig.{0}.{1}.mb", 0);
    to->gi_slices = slices(nvml_get(&one, "mig.{0}.{1}.k", 0));
    to->ci_slices = compute[nvml_get(&one, "mig.{0}.{1}.cik", 0) % 9];
    return OK;
}

int nvml_by_gi(const struct call *call, void **to) {
    for (int slot = 0; slot < MAX_MIGS; slot++) {
        struct call one = nvml_about(call->keys[0], slot);
        if (!nvml_get(&one, "mig.{0}.{1}", 0)) continue;
        if (nvml_get(&one, "mig.{0}.{1}.gi", 0) != call->keys[1]) continue;
        *to = nvml_mig_handle(call->keys[0], slot);
        return OK;
    }
    return NOT_FOUND;
}

static long long profile_id(long long card, long long k) {
    struct call one = nvml_about(card, k % MAX_PROFILES);
    return nvml_get(&one, "profile.{0}.{1}.id", 0);
}

int nvml_gi_info(mig *instance, struct GiInfo *to) {
    struct call one = about(instance);
    if (one.keys[1] < 0) return INVALID;
    to->device = nvml_card_handle(one.keys[0]);
    to->id = (unsigned)nvml_get(&one, "mig.{0}.{1}.gi", 0);
    to->profile = (unsigned)profile_id(one.keys[0], nvml_get(&one, "mig.{0}.{1}.k", 0));
    to->placement.start = (unsigned)nvml_get(&one, "mig.{0}.{1}.start", 0);
    to->placement.size = (unsigned)nvml_get(&one, "mig.{0}.{1}.size", 0);
    return OK;
}

int nvml_profile(const struct call *call, struct GiProfileV1 *first, struct GiProfileV2 *second) {
    if (call->keys[1] >= MAX_PROFILES) return INVALID;
    if (!nvml_get(call, "profile.{0}.{1}", 0)) return UNSUPPORTED;
    unsigned id = (unsigned)nvml_get(call, "profile.{0}.{1}.id", 0);
    unsigned cut = (unsigned)nvml_get(call, "profile.{0}.{1}.slices", 0);
    unsigned most = (unsigned)nvml_get(call, "profile.{0}.{1}.max", 0);
    u64 mb = (u64)nvml_get(call, "profile.{0}.{1}.mb", 0);
    if (first) {
        memset(first, 0, sizeof *first);
        first->id = id, first->slices = cut, first->instances = most, first->mb = mb;
    } else {
        second->id = id, second->slices = cut, second->instances = most, second->mb = mb;
        *second->name = 0;
        stub_text(call, "profile.{0}.{1}.name", second->name, sizeof second->name);
    }
    return OK;
}

int nvml_placements(const struct call *call, struct Placement *to, unsigned *count) {
    int starts[8], found = -1;
    long long size = 0;
    for (long long k = 0; k < MAX_PROFILES && found < 0; k++) {
        struct call one = nvml_about(call->keys[0], k);
        if (!nvml_get(&one, "profile.{0}.{1}", 0) || profile_id(one.keys[0], k) != call->keys[1]) continue;
        found = stub_numbers(&one, "profile.{0}.{1}.starts", 10, starts, 8);
        size = nvml_get(&one, "profile.{0}.{1}.size", 0);
    }
    if (found <= 0) return UNSUPPORTED;
    for (int i = 0; to && i < found; i++)
        to[i] = (struct Placement){(unsigned)starts[i], (unsigned)size};
    *count = (unsigned)found;
    return OK;
}

int nvml_instances(const struct call *call, void **to, unsigned *count) {
    long long seen[MAX_MIGS];
    unsigned found = 0;
    for (int slot = 0; slot < MAX_MIGS; slot++) {
        struct call one = nvml_about(call->keys[0], slot);
        long long k = nvml_get(&one, "mig.{0}.{1}.k", 0), gi = nvml_get(&one, "mig.{0}.{1}.gi", 0);
        if (!nvml_get(&one, "mig.{0}.{1}", 0) || profile_id(one.keys[0], k) != call->keys[1]) continue;
        int known = 0;
        for (unsigned i = 0; i < found; i++) known |= seen[i] == gi;
        if (known) continue;
        seen[found] = gi;
        to[found++] = nvml_mig_handle(call->keys[0], slot);
    }
    *count = found;
    return OK;
}
