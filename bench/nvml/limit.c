/* One sampling cycle of a card as calls alone: what is asked, and nothing made of the answers. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef unsigned long long u64;
typedef int (*any)();

enum { MAX_CARDS = 16, FIELDS = 11 };
enum { INIT, HANDLE, VALUES, MEMORY, SAMPLES, COMPUTE, GRAPHICS, MPS, BUSY, HEAT, CLOCK, ALLOC, TAKE, METRICS, CALLS };
static const char *const names[CALLS] = {
    "nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetSamples",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo", "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet", "nvmlGpmMetricsGet",
};
static any calls[CALLS];
static void *cards[MAX_CARDS], *samples[MAX_CARDS][2];
static int known;
static struct { unsigned id, scope; char rest[32]; } fields[FIELDS] = {
    {186, 0, ""}, {185, 0, ""}, {83, 0, ""}, {82, 0, ""}, {197, 0, ""}, {198, 0, ""},
    {138, ~0u, ""}, {139, ~0u, ""}, {202, ~0u, ""}, {204, ~0u, ""}, {230, 0, ""},
};
static const unsigned metrics[] = {2, 3, 5, 10, 11, 12, 13};
static struct {
    unsigned version, count;
    void *before, *now;
    struct { unsigned id; int code; double value; void *words[3]; } metrics[8];
} request;
static char room[128 * 32];

int limit_open(const char *library, int count) {
    void *dll = dlopen(library, RTLD_NOW);
    if (!dll || count > MAX_CARDS) return -1;
    for (int i = 0; i < CALLS; i++)
        if (!(calls[i] = (any)dlsym(dll, names[i]))) return -1;
    calls[INIT](1u);
    for (known = 0; known < count; known++) {
        if (calls[HANDLE]((unsigned)known, &cards[known])) return -1;
        for (int i = 0; i < 2; i++) {
            calls[ALLOC](&samples[known][i]);
            calls[TAKE](cards[known], samples[known][i]);
        }
    }
    return 0;
}

static void processes(int which, void *card) {
    unsigned count = 64;
    calls[which](card, &count, room);
}

int limit_cycle(u64 after_us) {
    unsigned kind, count, number;
    for (int i = 0; i < known; i++) {
        void *card = cards[i], *taken = samples[i][0];
        calls[VALUES](card, FIELDS, fields);
        struct { unsigned version; u64 sizes[4]; } memory = {0x02000028, {0}};
        calls[MEMORY](card, &memory);
        calls[TAKE](card, taken);
        samples[i][0] = samples[i][1], samples[i][1] = taken;
        request.version = 1, request.count = sizeof metrics / sizeof *metrics;
        request.before = samples[i][0], request.now = samples[i][1];
        for (unsigned m = 0; m < request.count; m++) request.metrics[m].id = metrics[m];
        calls[METRICS](&request);
        calls[SAMPLES](card, 1, after_us, &kind, (count = 128, &count), room);
        processes(COMPUTE, card), processes(GRAPHICS, card), processes(MPS, card);
        calls[BUSY](card, room, (count = 64, &count), after_us);
        calls[HEAT](card, 0, &number);
        calls[CLOCK](card, 1, &number), calls[CLOCK](card, 2, &number);
    }
    return 0;
}
