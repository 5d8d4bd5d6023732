/* What every call does first, and the calls on the system and on whole cards. */
#include "nvml_stub.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

double stub_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

struct gpu *stub_gpu(const void *device) {
    for (int i = 0; i < MAX_GPUS; i++)
        if (device == &stub.gpus[i] && stub.gpus[i].used) return &stub.gpus[i];
    return NULL;
}

struct mig *stub_mig(const void *device) {
    for (int i = 0; i < MAX_GPUS; i++)
        for (int j = 0; j < MAX_MIGS; j++)
            if (device == &stub.gpus[i].migs[j] && stub.gpus[i].migs[j].used)
                return &stub.gpus[i].migs[j];
    return NULL;
}

static void log_call(const char *symbol, int gpu, number argument) {
    const char *path = getenv("XPU_NVML_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s", symbol);
    if (gpu >= 0) fprintf(file, " %d", gpu);
    if (argument != NO_ARGUMENT) fprintf(file, " %lld", argument);
    fprintf(file, "\n");
    fclose(file);
}

/* Take the first fault of a kind that fits; one of limited number is used up. */
static struct fault *take(const char *symbol, int gpu, int kind) {
    for (int i = 0; i < stub.fault_count; i++) {
        struct fault *f = &stub.faults[i];
        if (f->kind != kind || strcmp(f->symbol, symbol) || !f->left) continue;
        if (f->gpu != UNSET && f->gpu != gpu) continue;
        if (f->left > 0) f->left--;
        return f;
    }
    return NULL;
}

int stub_enter(const char *symbol, const void *device, number argument) {
    pthread_mutex_lock(&lock);
    stub_reload();
    struct gpu *gpu = stub_gpu(device);
    struct mig *mig = stub_mig(device);
    int index = gpu ? (int)(gpu - stub.gpus) : mig ? mig->gpu : UNSET;
    log_call(symbol, index, argument);
    struct fault *late = take(symbol, index, FAULT_DELAY);
    number ms = late ? late->ms : 0;
    int hang = take(symbol, index, FAULT_HANG) != NULL;
    int crash = take(symbol, index, FAULT_CRASH) != NULL;
    struct fault *error = take(symbol, index, FAULT_ERROR);
    int code = error ? error->code : index >= 0 && stub.gpus[index].lost ? LOST : OK;
    pthread_mutex_unlock(&lock);
    if (ms) usleep((useconds_t)ms * 1000);
    if (crash) kill(getpid(), SIGSEGV);
    while (hang) pause();
    return code;
}

int stub_text(char *to, unsigned room, const char *from) {
    if (!*from) return UNSUPPORTED;
    if (strlen(from) >= room) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}

int stub_number(unsigned *to, number from) {
    if (from == UNSET) return UNSUPPORTED;
    *to = (unsigned)from;
    return OK;
}


/* System */
int nvmlInitWithFlags(unsigned flags) { ENTER_WITH(NULL, flags); return OK; }
int nvmlShutdown(void) { ENTER(NULL); return OK; }

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *to, unsigned room) {
    ENTER(NULL);
    return stub_text(to, room, stub.driver);
}

int nvmlSystemGetNVMLVersion(char *to, unsigned room) {
    ENTER(NULL);
    char text[TEXT + 4];
    snprintf(text, sizeof text, "12.%s", stub.driver);
    return stub_text(to, room, text);
}

int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    ENTER(NULL);
    *to = (int)stub.cuda;
    return stub.cuda ? OK : UNSUPPORTED;
}

/* Handles */
int nvmlDeviceGetCount_v2(unsigned *to) {
    ENTER(NULL);
    *to = 0;
    for (int i = 0; i < MAX_GPUS; i++) *to += stub.gpus[i].used;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    struct gpu *gpu = index < MAX_GPUS ? &stub.gpus[index] : NULL;
    ENTER_WITH(gpu, index);
    if (!gpu || !gpu->used) return INVALID;
    *to = gpu;
    return OK;
}

/* 00000000:23:00.0 and 0000:23:00.0 are the same card */
static const char *tail(const char *bus) {
    size_t length = strlen(bus);
    return length > 12 ? bus + length - 12 : bus;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **to) {
    stub_reload();
    struct gpu *found = NULL;
    for (int i = 0; i < MAX_GPUS; i++)
        if (stub.gpus[i].used && !strcasecmp(tail(stub.gpus[i].bus), tail(bus))) found = &stub.gpus[i];
    ENTER(found);
    if (!found) return NOT_FOUND;
    *to = found;
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **to) {
    ENTER(NULL);
    for (int i = 0; i < MAX_GPUS; i++)
        if (stub.gpus[i].used && !strcmp(stub.gpus[i].uuid, uuid)) {
            *to = &stub.gpus[i];
            return OK;
        }
    return NOT_FOUND;
}

/* Texts and numbers of one card */
#define TEXT_CALL(name, member) \
    int nvmlDeviceGet##name(void *device, char *to, unsigned room) { \
        ENTER(device); \
        GPU(device); \
        return stub_text(to, room, gpu->member); \
    }
#define NUMBER_CALL(name, member) \
    int nvmlDeviceGet##name(void *device, unsigned *to) { \
        ENTER(device); \
        GPU(device); \
        return stub_number(to, gpu->member); \
    }

TEXT_CALL(Name, name)
TEXT_CALL(Serial, serial)
TEXT_CALL(VbiosVersion, vbios)
NUMBER_CALL(MinorNumber, minor)
NUMBER_CALL(ModuleId, module)
NUMBER_CALL(Architecture, arch)
NUMBER_CALL(PersistenceMode, persistence)
NUMBER_CALL(ComputeMode, mode)
NUMBER_CALL(PowerUsage, power)
NUMBER_CALL(PerformanceState, pstate)
NUMBER_CALL(CurrPcieLinkWidth, width)
NUMBER_CALL(MaxPcieLinkWidth, max_width)

int nvmlDeviceGetUUID(void *device, char *to, unsigned room) {
    ENTER(device);
    struct mig *mig = stub_mig(device);
    if (mig) return stub_text(to, room, mig->uuid);
    GPU(device);
    return stub_text(to, room, gpu->uuid);
}

int nvmlDeviceGetIndex(void *device, unsigned *to) {
    ENTER(device);
    GPU(device);
    return stub_number(to, gpu - stub.gpus);
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *to) {
    ENTER(device);
    GPU(device);
    memset(to, 0, sizeof *to);
    snprintf(to->bus_id, sizeof to->bus_id, "%s", gpu->bus);
    snprintf(to->legacy, sizeof to->legacy, "%s", tail(gpu->bus));
    to->id = 0x233010de;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    ENTER(device);
    GPU(device);
    if (gpu->cc_major == UNSET) return UNSUPPORTED;
    *major = (int)gpu->cc_major, *minor = (int)gpu->cc_minor;
    return OK;
}

int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending) {
    ENTER(device);
    GPU(device);
    stub_number(pending, gpu->ecc);
    return stub_number(now, gpu->ecc);
}

int nvmlDeviceGetVirtualizationMode(void *device, unsigned *to) {
    ENTER(device);
    GPU(device);
    return stub_number(to, gpu->virt);
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *to) {
    ENTER(device);
    GPU(device);
    *to = (u64)gpu->energy;
    return gpu->energy == UNSET ? UNSUPPORTED : OK;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *to) {
    ENTER_WITH(device, sensor);
    GPU(device);
    return sensor ? INVALID : stub_number(to, gpu->temp);
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *to) {
    ENTER_WITH(device, type);
    GPU(device);
    return stub_number(to, type == 1 ? gpu->sm_clock : type == 2 ? gpu->mem_clock : UNSET);
}

int nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *to) {
    ENTER_WITH(device, counter);
    *to = 0;
    return OK;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    ENTER(device);
    GPU(device);
    if (gpu->remap[0] == UNSET) return UNSUPPORTED;
    *a = gpu->remap[0], *b = gpu->remap[1], *c = gpu->remap[2], *d = gpu->remap[3];
    return OK;
}

static int throttle(const struct gpu *gpu, u64 *to) {
    *to = (u64)gpu->throttle;
    return gpu->throttle == UNSET ? UNSUPPORTED : OK;
}

#if STUB_DRIVER >= 535
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *to) {
    ENTER(device);
    GPU(device);
    return throttle(gpu, to);
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *to) {
    ENTER(device);
    GPU(device);
    return throttle(gpu, to);
}

