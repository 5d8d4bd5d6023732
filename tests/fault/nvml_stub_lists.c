/* Calls with lists: processes, samples, fields, MIG instances. */
#include "nvml_stub.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct process { unsigned pid; u64 mem; unsigned gi, ci; };
struct old_process { unsigned pid; u64 mem; };
struct busy { unsigned pid; u64 time; unsigned sm, mem, enc, dec; };
union value { double f64; unsigned u32; u64 whole; };
struct sample { u64 time; union value value; };
struct field_value {
    unsigned id, scope;
    long long time, latency;
    unsigned type;
    int code;
    union value value;
};
struct attributes { unsigned sm, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices; u64 mb; };
struct gi_profile_v1 { unsigned id, p2p, slices, instances, sm, copy, dec, enc, jpeg, ofa; u64 mb; };
struct gi_profile_v2 {
    unsigned version, id, p2p, slices, instances, sm, copy, dec, enc, jpeg, ofa;
    u64 mb;
    char name[96];
};
struct gi_info { void *device; unsigned id, profile, start, size; };

/* Processes */
static int processes(void *device, unsigned *count, void *to, char list, int old) {
    GPU(device);
    unsigned found = 0, room = *count;
    for (int i = 0; i < gpu->proc_count; i++) {
        const struct proc *p = &gpu->procs[i];
        if (p->list && p->list != list) continue;
        if (to && found < room && old) {
            ((struct old_process *)to)[found] = (struct old_process){(unsigned)p->pid, (u64)p->mem};
        } else if (to && found < room) {
            struct process one = {(unsigned)p->pid, (u64)p->mem, (unsigned)p->gi, (unsigned)p->ci};
            ((struct process *)to)[found] = one;
        }
        found++;
    }
    *count = found;
    return found && (!to || found > room) ? TOO_SMALL : OK;
}

#define LIST(name, list, old) \
    int nvmlDeviceGet##name(void *device, unsigned *count, void *to) { \
        ENTER(device); \
        return processes(device, count, to, list, old); \
    }

LIST(ComputeRunningProcesses, 'c', 1)
LIST(GraphicsRunningProcesses, 'g', 1)
#if STUB_DRIVER >= 510
LIST(ComputeRunningProcesses_v2, 'c', 0)
LIST(GraphicsRunningProcesses_v2, 'g', 0)
LIST(MPSComputeRunningProcesses_v2, 'm', 0)
LIST(ComputeRunningProcesses_v3, 'c', 0)
LIST(GraphicsRunningProcesses_v3, 'g', 0)
LIST(MPSComputeRunningProcesses_v3, 'm', 0)
#endif

static u64 wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

int nvmlDeviceGetProcessUtilization(void *device, struct busy *to, unsigned *count, u64 after) {
    ENTER(device);
    GPU(device);
    unsigned found = 0, room = *count;
    for (int i = 0; i < gpu->proc_count; i++) {
        const struct proc *p = &gpu->procs[i];
        u64 time = p->ts ? (u64)p->ts : wall_us();  /* no time stamp: just now */
        if (p->sm == UNSET || (p->ts && time <= after)) continue;
        struct busy one = {(unsigned)p->pid, time, (unsigned)p->sm, 0, 0, 0};
        if (to && found < room) to[found] = one;
        found++;
    }
    *count = found;
    if (!found) return gpu->proc_count ? NOT_FOUND : OK;
    return !to || found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetSamples(void *device, unsigned kind, u64 after, unsigned *type, unsigned *count,
                         struct sample *to) {
    ENTER_WITH(device, kind);
    GPU(device);
    (void)after;
    number value = kind == 1 ? gpu->util_gpu : kind == 2 ? gpu->util_mem : UNSET;
    if (value == UNSET) return UNSUPPORTED;
    *type = 1, *count = 1;
    if (to) to->time = wall_us(), to->value.whole = 0, to->value.u32 = (unsigned)value;
    return OK;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *to) {
    ENTER_WITH(device, count);
    GPU(device);
    for (int i = 0; i < count; i++) {
        to[i].code = UNSUPPORTED;
        for (int j = 0; j < gpu->field_count; j++) {
            const struct field *f = &gpu->fields[j];
            if (f->id != to[i].id || f->scope != to[i].scope) continue;
            to[i].code = f->code, to[i].type = (unsigned)f->type;
            if (f->type) to[i].value.whole = f->whole;
            else to[i].value.f64 = f->f64;
        }
    }
    return OK;
}

/* MIG */
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    ENTER(device);
    GPU(device);
    stub_number(pending, gpu->migpending == UNSET ? gpu->migmode : gpu->migpending);
    return stub_number(now, gpu->migmode);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *to) {
    ENTER(device);
    GPU(device);
    *to = gpu->migmode == 1 ? 7 : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **to) {
    ENTER_WITH(device, index);
    GPU(device);
    if (index >= MAX_MIGS || !gpu->migs[index].used) return NOT_FOUND;
    if (gpu->migs[index].ci == UNSET) return NOT_FOUND;  /* a GPU instance alone is no device */
    *to = &gpu->migs[index];
    return OK;
}

#define MIG_NUMBER(name, member) \
    int nvmlDeviceGet##name(void *device, unsigned *to) { \
        ENTER(device); \
        struct mig *mig = stub_mig(device); \
        return mig ? stub_number(to, mig->member) : INVALID; \
    }
MIG_NUMBER(GpuInstanceId, gi)
MIG_NUMBER(ComputeInstanceId, ci)

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **to) {
    ENTER(device);
    struct mig *mig = stub_mig(device);
    if (!mig) return INVALID;
    *to = &stub.gpus[mig->gpu];
    return OK;
}

static unsigned slices(number k) {
    static const unsigned known[] = {1, 2, 3, 4, 7, 8, 6, 1, 2, 1, 1, 2, 4, 1, 2, 1, 2, 3};
    return k >= 0 && k < MAX_PROFILES ? known[k] : 1;
}

int nvmlDeviceGetAttributes_v2(void *device, struct attributes *to) {
    ENTER(device);
    static const unsigned compute[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    struct mig *mig = stub_mig(device);
    if (!mig) return INVALID;
    memset(to, 0, sizeof *to);
    to->sm = (unsigned)mig->sm, to->mb = (u64)mig->mb;
    to->gi_slices = slices(mig->k), to->ci_slices = compute[mig->cik % 9];
    return OK;
}

int nvmlDeviceGetGpuInstanceById(void *device, unsigned gi, void **to) {
    ENTER_WITH(device, gi);
    GPU(device);
    for (int j = 0; j < MAX_MIGS; j++)
        if (gpu->migs[j].used && gpu->migs[j].gi == gi) {
            *to = &gpu->migs[j];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(void *instance, struct gi_info *to) {
    ENTER(instance);
    struct mig *mig = stub_mig(instance);
    if (!mig) return INVALID;
    const struct profile *p = &stub.gpus[mig->gpu].profiles[mig->k % MAX_PROFILES];
    *to = (struct gi_info){&stub.gpus[mig->gpu], (unsigned)mig->gi, (unsigned)p->id,
                           (unsigned)mig->start, (unsigned)mig->size};
    return OK;
}

static const struct profile *profile_of(const struct gpu *gpu, unsigned id) {
    for (int k = 0; k < MAX_PROFILES; k++)
        if (gpu->profiles[k].used && gpu->profiles[k].id == id) return &gpu->profiles[k];
    return NULL;
}

struct place { unsigned start, size; };

static int places(void *device, unsigned id, struct place *to, unsigned *count) {
    GPU(device);
    const struct profile *p = profile_of(gpu, id);
    if (!p || !p->places) return UNSUPPORTED;
    for (int i = 0; to && i < p->places; i++)
        to[i] = (struct place){(unsigned)p->starts[i], (unsigned)p->size};
    *count = (unsigned)p->places;
    return OK;
}

int nvmlDeviceGetGpuInstancePossiblePlacements(void *device, unsigned id, void *to, unsigned *n) {
    ENTER_WITH(device, id);
    return places(device, id, to, n);
}

#if STUB_DRIVER >= 510
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, void *to, unsigned *n) {
    ENTER_WITH(device, id);
    return places(device, id, to, n);
}
#endif

int nvmlDeviceGetGpuInstances(void *device, unsigned id, void **to, unsigned *count) {
    ENTER_WITH(device, id);
    GPU(device);
    unsigned found = 0;
    for (int j = 0; j < MAX_MIGS; j++) {
        const struct mig *m = &gpu->migs[j];
        int seen = !m->used || m->k < 0 || gpu->profiles[m->k % MAX_PROFILES].id != id;
        for (int i = 0; i < j; i++) seen |= gpu->migs[i].used && gpu->migs[i].gi == m->gi;
        if (!seen) to[found++] = &gpu->migs[j];
    }
    *count = found;
    return OK;
}

int nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned k, struct gi_profile_v1 *to) {
    ENTER_WITH(device, k);
    GPU(device);
    if (k >= MAX_PROFILES) return INVALID;
    const struct profile *p = &gpu->profiles[k];
    if (!p->used) return UNSUPPORTED;
    memset(to, 0, sizeof *to);
    to->id = p->id, to->slices = p->slices, to->instances = p->max, to->mb = p->mb;
    return OK;
}

#if STUB_DRIVER >= 510
int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned k, struct gi_profile_v2 *to) {
    ENTER_WITH(device, k);
    GPU(device);
    if (to->version != 0x02000098) return BAD_VERSION;
    if (k >= MAX_PROFILES) return INVALID;
    const struct profile *p = &gpu->profiles[k];
    if (!p->used) return UNSUPPORTED;
    to->id = p->id, to->slices = p->slices, to->instances = p->max, to->mb = p->mb;
    snprintf(to->name, sizeof to->name, "%s", p->name);
    return OK;
}
#endif

/* Sizes and offsets, for the test that compares them with the binding's structures. */
#define OFFSET(type, member) (unsigned)__builtin_offsetof(struct type, member)
const unsigned stub_sizes[] = {
    sizeof(struct process), OFFSET(process, mem), OFFSET(process, gi), OFFSET(process, ci),
    sizeof(struct busy), OFFSET(busy, time), OFFSET(busy, sm), OFFSET(busy, dec),
    sizeof(struct sample), OFFSET(sample, value),
    sizeof(struct field_value), OFFSET(field_value, type), OFFSET(field_value, value),
    sizeof(struct event_data), OFFSET(event_data, gi),
    sizeof(struct attributes), OFFSET(attributes, gi_slices), OFFSET(attributes, mb),
    sizeof(struct gi_profile_v1), sizeof(struct gi_profile_v2), OFFSET(gi_profile_v2, name),
    sizeof(struct gi_info), OFFSET(gi_info, profile), OFFSET(gi_info, start),
};
