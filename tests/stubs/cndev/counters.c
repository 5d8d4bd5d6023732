/* libcndev: field values, and performance counters (MPM). */
#include "cndev.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CNDEV_DOUBLE = 0, CNDEV_INT = 4, CNDEV_LONG = 5 };
enum { FIRST_LINK = 62, BAD_SAMPLE = 5 };

struct sample {
    long long index, ns;
};

int cndev_fields(struct call *call, int number, struct FieldValue *values) {
    for (int i = 0; i < number; i++) {
        struct call one = {.key_count = 2, .keys = {call->keys[0], values[i].id}};
        char text[STUB_VALUE];
        values[i].code = UNSUPPORTED;
        if (!stub_text(&one, "mlu.{0}.field.{1}", text, sizeof text)) continue;
        double real = strtod(text, NULL);
        long long whole = strtoll(text, NULL, 0);
        int is_real = strpbrk(text, ".n") != NULL;
        values[i].code = OK;
        values[i].type = is_real ? CNDEV_DOUBLE : llabs(whole) < 1LL << 31 ? CNDEV_INT : CNDEV_LONG;
        /* the bytes beyond those of the type have no meaning */
        values[i].value = is_real ? 0 : 0xdeadbeef00000000u;
        if (is_real) memcpy(&values[i].value, &real, sizeof real);
        else memcpy(&values[i].value, &whole, values[i].type == CNDEV_INT ? 4 : 8);
    }
    return OK;
}

static int counter(long long index, int id, double *to) {
    struct call one = {.key_count = 2, .keys = {index, (id - FIRST_LINK) / 2}};
    int part = id <= 3 ? id - 1 : id <= 21 ? id - 17 : id < FIRST_LINK ? id - 55 : id % 2;
    const char *path = id < FIRST_LINK ? "mlu.{0}.mpm" : "mlu.{0}.mpm_link.{1}";
    struct fill from = {path, NULL, 0, 8, 0, STUB_FLOAT, 0, part, ':', 1};
    return stub_fill(&one, to, &from, 1);
}

int cndev_has_counters(struct call *call, uint8_t *to) {
    double value;
    *to = counter(call->keys[0], 1, &value) == OK;
    return OK;
}

int cndev_new_sample(void **to) {
    *to = calloc(1, sizeof(struct sample));
    return OK;
}

int cndev_free_sample(void *sample) {
    free(sample);
    return OK;
}

int cndev_take_sample(struct call *call, void *sample) {
    struct sample *to = sample;
    struct timespec now;
    double value;
    if (counter(call->keys[0], 1, &value)) return UNSUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    to->index = call->keys[0], to->ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    return OK;
}

int cndev_means(struct MpmRequest *request) {
    const struct sample *first = (void *)(uintptr_t)request->first;
    const struct sample *second = (void *)(uintptr_t)request->second;
    if (request->layout != 1 || first->index != second->index) return BAD_SAMPLE;
    int is_short = second->ns - first->ns < cndev_number("mpm_pause_ms", 100) * 1000000;
    for (uint32_t i = 0; i < request->count; i++) {
        struct MpmMetric *metric = &request->metrics[i];
        metric->code = counter(second->index, metric->id, &metric->value) ? UNSUPPORTED : OK;
        if (is_short) metric->code = OK, metric->value = NAN;
    }
    return OK;
}
