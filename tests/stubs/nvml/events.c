/* libnvidia-ml: events of cards, and cards that come and go. Each is told once. */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_EVENTS = 1024, EVENT = 128 };
struct event { long long card, type, data, gi, ci; double at_s; };

static double started_s;
static u64 registered[MAX_GPUS];
static char given[MAX_EVENTS][EVENT];
static int given_count, told;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int nvml_set(void **to) {
    if (!started_s) started_s = now_s();
    *to = &started_s;
    return OK;
}

int nvml_free_set(void) {
    memset(registered, 0, sizeof registered);
    return OK;
}

int nvml_types(const struct call *call, u64 *to) {
    long long events = nvml_get(call, "gpu.{0}.events", -1);
    *to = events == -1 ? 0xFFFF : (u64)events;
    return events == 0 ? UNSUPPORTED : OK;
}

int nvml_register(const struct call *call) {
    registered[call->keys[0]] = (u64)call->keys[1];
    return OK;
}

static void read_event(char *value, struct event *to) {
    char word[32], *rest = value;
    long long *members[] = {&to->card, &to->type, &to->data, &to->gi, &to->ci};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        int found = nvml_next(&rest, word, sizeof word);
        *members[i] = found ? strtoll(word, NULL, 0) : i < 3 ? 0 : 0xFFFFFFFF;
    }
    to->at_s = nvml_next(&rest, word, sizeof word) ? atof(word) : 0;
}

static int fresh(const char *value) {
    for (int i = 0; i < given_count; i++)
        if (!strcmp(given[i], value)) return 0;
    return given_count < MAX_EVENTS;
}

/* Take the first event that is due; else say how many milliseconds the next one is away. */
static int take(struct event *to, double *next_ms) {
    long long ids[MAX_EVENTS];
    struct call all = nvml_about(0, 0);
    int found = stub_ids(&all, "event.", ids, MAX_EVENTS);
    for (int i = 0; i < found; i++) {
        struct call one = nvml_about(ids[i], 0);
        char value[EVENT], copy[EVENT];
        if (!stub_text(&one, "event.{0}", value, sizeof value) || !fresh(value)) continue;
        memcpy(copy, value, sizeof copy);
        read_event(copy, to);
        if (to->card < 0 || to->card >= MAX_GPUS || !(registered[to->card] & (u64)to->type)) continue;
        double left_ms = (started_s + to->at_s - now_s()) * 1000;
        if (left_ms <= 0) {
            memcpy(given[given_count++], value, sizeof value);
            return 1;
        }
        if (left_ms < *next_ms) *next_ms = left_ms;
    }
    return 0;
}

/* A line that was appended to the events: gpu;type;data */
static int arrived(struct event *to) {
    char line[STUB_VALUE];
    if (!stub_wait(line, sizeof line, 0)) return 0;
    read_event(line, to);
    return to->card >= 0 && to->card < MAX_GPUS && (registered[to->card] & (u64)to->type);
}

int nvml_wait(struct EventData *to, unsigned timeout_ms) {
    static unsigned seen;
    double until_s = now_s() + timeout_ms / 1000.0;
    struct event event;
    do {
        double wait_ms = (until_s - now_s()) * 1000 + 1;
        stub_lock();
        stub_reload();
        stub_unlock();
        if (arrived(&event) || take(&event, &wait_ms)) {
            *to = (struct EventData){nvml_card_handle(event.card), (u64)event.type, (u64)event.data,
                                     (unsigned)event.gi, (unsigned)event.ci};
            return OK;
        }
        if (wait_ms > 0) stub_idle(&seen, (int)wait_ms + 1);
    } while (now_s() < until_s);
    return TIMED_OUT;
}

int nvml_system_set(struct SetRequest *to) {
    to->set = &told;
    return OK;
}

int nvml_system_wait(struct WaitRequest *to) {
    struct SystemEvent *data = to->data;
    long long ids[MAX_ITEMS];
    struct call all = nvml_about(0, 0);
    int found = stub_ids(&all, "binding.", ids, MAX_ITEMS);
    to->count = 0;
    while (told < found && to->count < to->room) {
        struct call one = nvml_about(ids[told++], 0);
        data[to->count].type = (u64)nvml_get(&one, "binding.{0}", 0);
        data[to->count++].gpu = 0;
    }
    return to->count ? OK : TIMED_OUT;
}
