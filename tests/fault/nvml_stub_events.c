/* Events of cards, given as the scenario has them due. */
#include "nvml_stub.h"

#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

/* Events: one set; each event is given once, also when the scenario is read again. */
static double started_s;
static u64 registered[MAX_GPUS];
static struct event given[MAX_EVENTS];
static int given_count;

int nvmlEventSetCreate(void **to) {
    ENTER(NULL);
    if (!started_s) started_s = stub_now_s();
    *to = &started_s;
    return OK;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    ENTER(NULL);
    memset(registered, 0, sizeof registered);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(void *device, u64 *to) {
    ENTER(device);
    GPU(device);
    if (gpu->events == 0) return UNSUPPORTED;
    *to = gpu->events == UNSET ? 0xFFFF : (u64)gpu->events;
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    (void)set;
    ENTER_WITH(device, types);
    GPU(device);
    registered[gpu - stub.gpus] = types;
    return OK;
}

static int fresh(const struct event *e) {
    for (int i = 0; i < given_count; i++)
        if (!memcmp(e, &given[i], sizeof *e)) return 0;
    return given_count < MAX_EVENTS;
}

static const struct event *due(void) {
    for (int i = 0; i < stub.event_count; i++) {
        const struct event *e = &stub.events[i];
        int heard = e->gpu < MAX_GPUS && (registered[e->gpu] & (u64)e->type);
        if (heard && stub_now_s() - started_s >= e->at && fresh(e)) return e;
    }
    return NULL;
}

/* Sleep until the scenario changes, at most so long: waiting costs the worker nothing. */
static void sleep_ms(int most_ms) {
    static int changes = -1;
    const char *path = getenv("XPU_NVML_SCENARIO");
    if (changes < 0 && path) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s", path);
        changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        inotify_add_watch(changes, dirname(folder), IN_MOVED_TO | IN_CLOSE_WRITE);
    }
    struct pollfd change = {changes, POLLIN, 0};
    char seen[4096];
    if (poll(&change, 1, most_ms) > 0) (void)!read(changes, seen, sizeof seen);
}

/* How long until an event of the scenario may be due. */
static double next_s(void) {
    double soonest = 1e9;
    for (int i = 0; i < stub.event_count; i++) {
        double left = stub.events[i].at - (stub_now_s() - started_s);
        if (left > 0 && left < soonest) soonest = left;
    }
    return soonest;
}

int nvmlEventSetWait_v2(void *set, struct event_data *to, unsigned timeout_ms) {
    (void)set;
    ENTER_WITH(NULL, timeout_ms);
    double until_s = stub_now_s() + timeout_ms / 1000.0;
    for (;;) {
        stub_reload();
        const struct event *e = due();
        if (e) {
            given[given_count++] = *e;
            *to = (struct event_data){&stub.gpus[e->gpu], (u64)e->type, (u64)e->data,
                                      (unsigned)e->gi, (unsigned)e->ci};
            return OK;
        }
        double left_s = until_s - stub_now_s(), due_s = next_s();
        if (left_s <= 0) return TIMED_OUT;
        sleep_ms((int)((due_s < left_s ? due_s : left_s) * 1000) + 1);
    }
}
