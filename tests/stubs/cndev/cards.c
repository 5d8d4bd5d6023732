/* libcndev: handles, incidents, ports, events. */
#include "cndev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct call nobody;
static uint64_t heard[64]; /* event types by card */

long long cndev_number(const char *path, long long otherwise) {
    long long found;
    stub_lock();
    stub_reload();
    stub_unlock();
    return stub_number(&nobody, path, 0, &found) ? found : otherwise;
}

int cndev_version(int version) {
    return version < 1 || version > cndev_number("api", 6) ? BAD_VERSION : OK;
}

long long cndev_base(void) { return cndev_number("handles", 16384); }

long long cndev_index(int32_t handle) {
    long long index = handle - cndev_base();
    return index >= 0 && index < cndev_number("count", 0) ? index : -1;
}

int cndev_handle(int index, int32_t *to) {
    if (index < 0 || index >= cndev_number("count", 0)) return BAD_ARGUMENT;
    *to = (int32_t)(cndev_base() + index);
    return OK;
}

int cndev_incidents(struct call *call, struct HealthV2 *to) {
    static const struct fill incident[] = {
        {"=", NULL, offsetof(struct Incident, code), 4, 0, STUB_SIGNED, 0, 0, ':', 1},
        {"=", "", offsetof(struct Incident, msg), 1, 512, STUB_CHARS, 0, 1, ':', 1},
    };
    long long overall, one;
    if (!stub_number(call, "mlu.{0}.overall", 0, &overall)) return UNSUPPORTED;
    to->health = stub_number(call, "mlu.{0}.health", 0, &one) ? (int)one : 1;
    to->device = stub_number(call, "mlu.{0}.device", 0, &one) ? (int)one : 1;
    to->driver = stub_number(call, "mlu.{0}.driver", 0, &one) ? (int)one : 4;
    to->overall = (int)overall;
    int number = 64;
    int code = stub_each(call, "mlu.{0}.incident.", to->incidents, sizeof *to->incidents, &number,
                         incident, 2);
    to->count = (uint32_t)number;
    for (int i = 0; i < number; i++) to->incidents[i].health = to->overall;
    return code;
}

int cndev_ports(struct call *call) {
    long long ids[64];
    int found = stub_ids(call, "mlu.{0}.port.", ids, 64);
    return found ? (int)ids[found - 1] + 1 : 0;
}

int cndev_retired(struct call *call, struct RetiredPages *to) {
    struct call one = {.key_count = 2, .keys = {call->keys[0], to->cause}};
    long long pages;
    if (!stub_number(&one, "mlu.{0}.retired.{1}", 0, &pages)) return UNSUPPORTED;
    to->count = (uint32_t)pages;
    return OK;
}

static long long part(struct call *call, const char *path, int number) {
    struct fill from = {path, NULL, 0, 8, 0, STUB_SIGNED, 0, number, ':', 1};
    long long to = -1;
    return stub_fill(call, &to, &from, 1) ? -1 : to;
}

int cndev_ecc_modes(struct call *call, struct Mode *now, struct Mode *pending) {
    long long mode = part(call, "mlu.{0}.ecc_mode", 0);
    if (mode < 0) return UNSUPPORTED;
    now->mode = (int)mode, pending->mode = (int)part(call, "mlu.{0}.ecc_mode", 1);
    return OK;
}

int cndev_directions(struct call *call, int *inbound, int *outbound) {
    long long state = part(call, "mlu.{0}.port_state.{1}", 0);
    if (state < 0) return UNSUPPORTED;
    *inbound = (int)state, *outbound = (int)part(call, "mlu.{0}.port_state.{1}", 1);
    return OK;
}

int cndev_listen(void **to) {
    stub_listen(NULL);
    *to = heard;
    return OK;
}

int cndev_register(struct call *call) {
    if (call->keys[0] >= 64) return BAD_ARGUMENT;
    heard[call->keys[0]] = (uint64_t)call->keys[1];
    return OK;
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int cndev_wait(struct Event *to, int timeout_ms) {
    char line[STUB_VALUE], *rest;
    if (!stub_wait(line, sizeof line, timeout_ms)) return TIMED_OUT;
    long index = strtol(line, &rest, 10);
    if (index < 0 || index >= 64 || !(heard[index] & 1)) return TIMED_OUT;
    memset(&to->device, 0, sizeof *to - offsetof(struct Event, device));
    to->device = (int32_t)(cndev_base() + index);
    to->data = strtoull(rest, NULL, 0), to->type = 1, to->time = now_us();
    return OK;
}
