/* Calls on performance counters, on memory that is beyond repair, and on cards that come and go. */
#include "nvml_stub.h"

#include <stdlib.h>
#include <string.h>

struct gpm_sample { struct gpu *gpu; number gi; int filled; };
struct gpm_metric { unsigned id; int code; double value; const char *words[3]; };
struct gpm_request {
    unsigned version, count;
    struct gpm_sample *before, *now;
    struct gpm_metric metrics[];  /* how many there are depends on the caller's header */
};
struct gpm_support { unsigned version, supported; };
struct sram { unsigned version; u64 counts[11]; unsigned exceeded; };
struct repair { unsigned version, channel, tpc; };
struct unrepairable { unsigned version, flag; };
struct set_request { unsigned version; void *set; };
struct register_request { unsigned version; u64 types; void *set; };
struct system_event { u64 type; unsigned gpu; };
struct wait_request {
    unsigned version, timeout_ms;
    void *set;
    struct system_event *data;
    unsigned room, count;
};

#if STUB_DRIVER >= 535
/* Performance counters: between any two samples they are what the scenario says now */
int nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *to) {
    ENTER(device);
    GPU(device);
    if (to->version != 1) return BAD_VERSION;
    to->supported = gpu->gpm_count > 0;
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **to) {
    ENTER(NULL);
    *to = calloc(1, sizeof **to);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER(NULL);
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(void *device, struct gpm_sample *to) {
    ENTER(device);
    GPU(device);
    *to = (struct gpm_sample){gpu, UNSET, 1};
    return OK;
}

int nvmlGpmMigSampleGet(void *device, unsigned gi, struct gpm_sample *to) {
    ENTER_WITH(device, gi);
    GPU(device);
    *to = (struct gpm_sample){gpu, gi, 1};
    return OK;
}

int nvmlGpmMetricsGet(struct gpm_request *to) {
    ENTER_WITH(to->now ? (void *)to->now->gpu : NULL, to->count);
    if (to->version != 1) return BAD_VERSION;
    if (!to->before->filled || !to->now->filled) return INVALID;
    for (unsigned i = 0; i < to->count; i++) {
        struct gpm_metric *m = &to->metrics[i];
        m->code = UNSUPPORTED;
        for (int j = 0; j < to->now->gpu->gpm_count; j++) {
            const struct gpm *p = &to->now->gpu->gpms[j];
            if (p->id == m->id && p->gi == to->now->gi) m->value = p->value, m->code = OK;
        }
    }
    return OK;
}

int nvmlDeviceGetSramEccErrorStatus(void *device, struct sram *to) {
    ENTER(device);
    GPU(device);
    if (to->version != 0x01000068) return BAD_VERSION;
    if (gpu->sram == UNSET) return UNSUPPORTED;
    to->exceeded = gpu->sram != 0;
    return OK;
}
#endif

#if STUB_DRIVER > 570
int nvmlDeviceGetRepairStatus(void *device, struct repair *to) {
    ENTER(device);
    GPU(device);
    if (gpu->repair == UNSET) return UNSUPPORTED;
    to->channel = gpu->repair & 1, to->tpc = gpu->repair >> 1 & 1;
    return OK;
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *device, struct unrepairable *to) {
    ENTER(device);
    GPU(device);
    return stub_number(&to->flag, gpu->unrepairable);
}

/* Cards that are bound to the driver or taken from it: each is told once */
static int told;

int nvmlSystemEventSetCreate(struct set_request *to) {
    ENTER(NULL);
    to->set = &told;
    return OK;
}

int nvmlSystemEventSetFree(struct set_request *from) {
    (void)from;
    ENTER(NULL);
    return OK;
}

int nvmlSystemRegisterEvents(struct register_request *from) {
    ENTER_WITH(NULL, (number)from->types);
    return OK;
}

int nvmlSystemEventSetWait(struct wait_request *to) {
    ENTER(NULL);
    to->count = 0;
    while (told < stub.binding_count && to->count < to->room)
        to->data[to->count++] = (struct system_event){(u64)stub.bindings[told++].type, 0};
    return to->count ? OK : TIMED_OUT;
}
#endif

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *to) {
    ENTER_WITH(device, type);
    GPU(device);
    (void)counter;
    *to = (u64)gpu->uncorrected;
    return gpu->uncorrected == UNSET ? UNSUPPORTED : OK;
}

#define ENGINE_CALL(name, member) \
    int nvmlDeviceGet##name##Utilization(void *device, unsigned *to, unsigned *period_us) { \
        ENTER(device); \
        GPU(device); \
        *period_us = 1000000; \
        return stub_number(to, gpu->member); \
    }
ENGINE_CALL(Encoder, encoder)
ENGINE_CALL(Decoder, decoder)

/* Sizes and offsets, for the test that compares them with the binding's structures. */
#define OFFSET(type, member) (unsigned)__builtin_offsetof(struct type, member)
const unsigned stub_counter_sizes[] = {
    sizeof(struct gpm_metric), OFFSET(gpm_metric, value), OFFSET(gpm_request, metrics),
    sizeof(struct gpm_support), sizeof(struct sram), OFFSET(sram, exceeded),
    sizeof(struct repair), sizeof(struct unrepairable), sizeof(struct set_request),
    sizeof(struct register_request), sizeof(struct system_event), sizeof(struct wait_request),
};
