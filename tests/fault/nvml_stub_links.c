/* Calls on a card's memory, its NVLinks and the fabric behind them. */
#include "nvml_stub.h"

#include <string.h>

struct memory_v1 { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct fabric_v1 { unsigned char uuid[16]; unsigned status, clique; unsigned char state; };
struct fabric_v3 {
    unsigned version;
    unsigned char uuid[16];
    unsigned status, clique;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
};
struct addressing { unsigned version, mode; };
struct confidential { unsigned environment, on, tools; };
struct platform { unsigned version; char guid[16], chassis[16]; unsigned char numbers[5]; };

/* Memory: version 1 counts the reserve as used */
int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *to) {
    ENTER(device);
    struct mig *mig = stub_mig(device);
    GPU(mig ? (void *)&stub.gpus[mig->gpu] : device);
    if (gpu->mem == UNSET) return UNSUPPORTED;
    to->total = (u64)gpu->mem, to->used = (u64)(gpu->used_mem + gpu->reserved);
    to->free = to->total - to->used;
    return OK;
}

#if STUB_DRIVER >= 510
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *to) {
    ENTER(device);
    GPU(device);
    if (to->version != 0x02000028) return BAD_VERSION;
    if (gpu->mem == UNSET) return UNSUPPORTED;
    to->total = (u64)gpu->mem, to->used = (u64)gpu->used_mem, to->reserved = (u64)gpu->reserved;
    to->free = to->total - to->used - to->reserved;
    return OK;
}
#endif

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *to) {
    ENTER(device);
    GPU(device);
    if (gpu->util_gpu == UNSET) return UNSUPPORTED;
    to->gpu = (unsigned)gpu->util_gpu, to->memory = (unsigned)gpu->util_mem;
    return OK;
}

/* Links and the fabric behind them */
static struct link *link_of(struct gpu *gpu, unsigned number) {
    return number < MAX_LINKS && gpu->links[number].used ? &gpu->links[number] : NULL;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned number, unsigned *to) {
    ENTER_WITH(device, number);
    GPU(device);
    struct link *link = link_of(gpu, number);
    return link ? stub_number(to, link->state) : number ? INVALID : UNSUPPORTED;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned number, unsigned *to) {
    ENTER_WITH(device, number);
    GPU(device);
    struct link *link = link_of(gpu, number);
    return link ? stub_number(to, link->type) : INVALID;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned number, struct pci *to) {
    ENTER_WITH(device, number);
    GPU(device);
    struct link *link = link_of(gpu, number);
    if (!link) return INVALID;
    memset(to, 0xAA, sizeof *to);  /* only the bus id is worth anything */
    memset(to->bus_id, 0, sizeof to->bus_id);
    return stub_text(to->bus_id, sizeof to->bus_id, link->remote);
}

int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, unsigned *to) {
    struct gpu *b = stub_gpu(other);
    ENTER_WITH(device, b ? b - stub.gpus : NO_ARGUMENT);
    GPU(device);
    return b ? stub_number(to, gpu->ancestors[b - stub.gpus]) : INVALID;
}

#if STUB_DRIVER >= 535
int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric_v1 *to) {
    ENTER(device);
    GPU(device);
    const struct fabric *f = &gpu->fabric;
    if (!f->used) return UNSUPPORTED;
    memcpy(to->uuid, f->uuid, sizeof to->uuid);
    to->status = f->status, to->clique = f->clique, to->state = f->state;
    return OK;
}
#endif

#if STUB_DRIVER >= 570
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v3 *to) {
    ENTER_WITH(device, to->version >> 24);
    GPU(device);
    const struct fabric *f = &gpu->fabric;
    int third = to->version == 0x03000028 && STUB_DRIVER > 570;
    if (!third && to->version != 0x02000024) return BAD_VERSION;
    if (!f->used) return UNSUPPORTED;
    memcpy(to->uuid, f->uuid, sizeof to->uuid);
    to->status = f->status, to->clique = f->clique, to->state = f->state, to->mask = f->mask;
    if (third) to->summary = f->summary;
    return OK;
}

int nvmlDeviceGetAddressingMode(void *device, struct addressing *to) {
    ENTER(device);
    GPU(device);
    if (to->version != 0x01000008) return BAD_VERSION;
    return stub_number(&to->mode, gpu->addressing);
}

int nvmlDeviceGetPlatformInfo(void *device, struct platform *to) {
    ENTER(device);
    GPU(device);
    if (to->version != 0x0200002c) return BAD_VERSION;
    if (!*gpu->chassis) return UNSUPPORTED;
    memcpy(to->chassis, gpu->chassis, sizeof to->chassis);
    for (int i = 0; i < 4; i++) to->numbers[i] = (unsigned char)gpu->rack[i];
    return OK;
}

int nvmlSystemGetConfComputeState(struct confidential *to) {
    ENTER(NULL);
    memset(to, 0, sizeof *to);
    to->on = (unsigned)stub.confidential;
    return OK;
}

int nvmlSystemGetConfComputeGpusReadyState(unsigned *to) {
    ENTER(NULL);
    *to = (unsigned)stub.ready;
    return OK;
}
#endif

int nvmlDeviceGetNumaNodeId(void *device, unsigned *to) {
    ENTER(device);
    GPU(device);
    return stub_number(to, gpu->numa_node);
}
