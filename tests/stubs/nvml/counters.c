/* libnvidia-ml: performance counters, and memory that is beyond repair. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample { long long card, gi; int filled; };

struct gpm_request {
    unsigned version, count;
    struct sample *before, *now;
    struct GpmMetric metrics[]; /* how many there are depends on the caller's header */
};

static int counted(long long card) {
    struct call one = nvml_about(card, 0);
    return (int)nvml_get(&one, "gpm.{0}", 0);
}

int nvml_gpm_support(const struct call *call, struct GpmSupport *to) {
    to->supported = (unsigned)counted(call->keys[0]);
    return OK;
}

int nvml_gpm_alloc(void **to) {
    *to = calloc(1, sizeof(struct sample));
    return OK;
}

int nvml_gpm_free(void *sample) {
    free(sample);
    return OK;
}

int nvml_gpm_get(const struct call *call, long long gi, void *sample) {
    *(struct sample *)sample = (struct sample){call->keys[0], gi, 1};
    return OK;
}

/* Between any two samples the counters are what the scenario says now */
int nvml_gpm_metrics(gpm_request *to) {
    if (to->version != 1) return BAD_VERSION;
    if (!to->before->filled || !to->now->filled) return INVALID;
    for (unsigned i = 0; i < to->count; i++) {
        struct GpmMetric *m = &to->metrics[i];
        struct call one = {.key_count = 3, .keys = {to->now->card, to->now->gi, m->id}};
        char value[64];
        int found = stub_text(&one, "gpm.{0}.{1}.{2}", value, sizeof value);
        m->code = found ? OK : UNSUPPORTED;
        if (found) m->value = atof(value);
    }
    return OK;
}

int nvml_repair(const struct call *call, struct Repair *to) {
    long long repair = nvml_get(call, "gpu.{0}.repair", -1);
    if (repair == -1) return UNSUPPORTED;
    to->channel = repair & 1, to->tpc = repair >> 1 & 1;
    return OK;
}
