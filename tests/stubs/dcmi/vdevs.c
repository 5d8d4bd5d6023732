/* libdcmi: vNPUs, which outlive the process as a driver's do, and what else is told by command. */
#include "dcmi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VDEVS "vdev.{0}.{1}."

enum { FIRST = 100, MOST = 32, PORTS = 16 };

static struct call with(const struct call *call, long long vdev) {
    struct call one = {.key_count = 3, .keys = {call->keys[0], call->keys[1], vdev}};
    return one;
}

/* `template:cores:MB` */
static int split(char *value, char *name, unsigned *cores, unsigned long long *mb) {
    return sscanf(value, "%31[^:]:%u:%llu", name, cores, mb) == 3;
}

static int total(struct call *call, struct soc_total_resource *to) {
    long long ids[STUB_ITEMS], number;
    int cut = stub_ids(call, VDEVS, ids, STUB_ITEMS), told = cut > 0;
    char value[STUB_VALUE];
    if (stub_text(call, "chip.{0}.{1}.aic", value, sizeof value))
        to->computing.aic = strtof(value, NULL), told = 1;
    if (stub_number(call, "chip.{0}.{1}.aicpu", 10, &number))
        to->computing.device_aicpu = (uint16_t)number, told = 1;
    to->vdev_num = (uint32_t)(cut > MOST ? MOST : cut);
    for (uint32_t i = 0; i < to->vdev_num; i++) to->vdev_id[i] = (uint32_t)ids[i];
    return told ? OK : UNSUPPORTED;
}

static int query(struct call *call, struct vdev_query *to) {
    struct call one = with(call, to->vdev_id);
    char value[STUB_VALUE], name[32] = "";
    unsigned cores = 0;
    unsigned long long mb = 0;
    if (!stub_text(&one, VDEVS "{2}", value, sizeof value)) return GONE;
    if (!split(value, name, &cores, &mb)) return BAD_PARAMETER;
    memcpy(to->info.name, name, sizeof to->info.name);
    to->info.vfg_id = 0xFFFFFFFF;
    to->info.computing.aic = (float)cores, to->info.computing.memory_size = mb;
    return OK;
}

static int activity(struct call *call, struct vdev_query *to) {
    struct call one = with(call, to->vdev_id);
    char value[STUB_VALUE];
    unsigned percent;
    unsigned long long all, left;
    if (!stub_text(&one, "vdev_use.{0}.{1}.{2}", value, sizeof value)) return UNSUPPORTED;
    if (sscanf(value, "%u:%llu:%llu", &percent, &all, &left) != 3) return BAD_PARAMETER;
    to->info.computing.vdev_aicore_util = percent;
    to->info.computing.vdev_mem_total = all, to->info.computing.vdev_mem_free = left;
    return OK;
}

static int super_pod(struct call *call, struct spod_info *to) {
    char value[STUB_VALUE];
    if (!stub_text(call, "chip.{0}.{1}.spod", value, sizeof value)) return UNSUPPORTED;
    return sscanf(value, "%u:%u:%u", &to->sdid, &to->super_pod_id, &to->server_id) == 3
        ? OK : BAD_PARAMETER;
}

static int counters(struct call *call, void *to, int wide) {
    static const char *const paths[] = {"hccs_tx", "hccs_rx", "hccs_crc", "hccs_retry"};
    long long narrow = 0;
    int told = 0;
    stub_number(call, "chip.{0}.{1}.hccs_narrow", 10, &narrow);
    if (wide && narrow) return UNSUPPORTED;
    for (int kind = 0; kind < 4; kind++) {
        char path[STUB_PATH];
        int numbers[PORTS];
        snprintf(path, sizeof path, "chip.{0}.{1}.%s", paths[kind]);
        int count = stub_numbers(call, path, 10, numbers, PORTS);
        told = told || count > 0;
        for (int port = 0; port < count; port++) {
            if (wide) ((uint64_t *)to)[kind * PORTS + port] = (uint64_t)numbers[port];
            else ((uint32_t *)to)[kind * PORTS + port] = (uint32_t)numbers[port];
        }
    }
    return told ? OK : UNSUPPORTED;
}

static int between_dies(struct call *call, struct sio_crc *to) {
    int numbers[2];
    if (stub_numbers(call, "chip.{0}.{1}.sio", 10, numbers, 2) != 2) return UNSUPPORTED;
    to->tx_err = (uint16_t)numbers[0], to->rx_err = (uint16_t)numbers[1];
    return OK;
}

int dcmi_info(struct call *call, int main, int sub, void *to, unsigned *size) {
    static const struct { int main, sub; unsigned size; } known[] = {
        {12, 1, sizeof(struct spod_info)}, {16, 3, sizeof(struct hccs_statistic)},
        {16, 5, sizeof(struct hccs_statistic_u64)}, {52, 0, sizeof(struct vdev_query)},
        {52, 1, sizeof(struct soc_total_resource)}, {52, 5, sizeof(struct vdev_query)},
        {56, 0, sizeof(struct sio_crc)},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].main != main || known[i].sub != sub) continue;
        if (!size || *size != known[i].size) return BAD_PARAMETER;
        switch (main * 100 + sub) {
        case 1201: return super_pod(call, to);
        case 1603: return counters(call, to, 0);
        case 1605: return counters(call, to, 1);
        case 5200: return query(call, to);
        case 5201: return total(call, to);
        case 5205: return activity(call, to);
        default: return between_dies(call, to);
        }
    }
    return UNSUPPORTED;
}

/* `vir05_1c_16g` says 5 cores and 16 GB */
static void by_name(const char *name, unsigned *cores, unsigned long long *mb) {
    const char *memory = strstr(name, "g");
    *cores = (unsigned)strtoul(name + 3, NULL, 10);
    while (memory && memory > name && memory[-1] >= '0' && memory[-1] <= '9') memory--;
    *mb = memory ? 1024 * strtoull(memory, NULL, 10) : 3072ull * *cores;
}

int dcmi_create(struct call *call, const struct create_vdev_res *wanted,
                struct create_vdev_out *made) {
    char name[33] = "", path[STUB_PATH], value[STUB_VALUE];
    long long ids[STUB_ITEMS], number = FIRST;
    unsigned cores;
    unsigned long long mb;
    memcpy(name, wanted->template, sizeof wanted->template);
    if (strncmp(name, "vir", 3)) return BAD_PARAMETER;
    by_name(name, &cores, &mb);
    snprintf(path, sizeof path, "template.%s", name);
    if (stub_text(call, path, value, sizeof value)) sscanf(value, "%u:%llu", &cores, &mb);
    int cut = stub_ids(call, VDEVS, ids, STUB_ITEMS);
    for (int i = 0; i < cut; i++)
        if (ids[i] == number) number++;
    stub_number(call, "vdev_next", 10, &number);
    struct call one = with(call, number);
    snprintf(value, sizeof value, "%s:%u:%llu", name, cores, mb);
    stub_put(&one, VDEVS "{2}", value);
    stub_number(call, "vdev_told", 10, &number); /* a driver may lie about what it made */
    made->vdev_id = (uint32_t)number;
    return OK;
}

int dcmi_destroy(struct call *call) {
    char value[STUB_VALUE];
    struct call one = with(call, call->keys[2]);
    if (!stub_text(&one, VDEVS "{2}", value, sizeof value)) return GONE;
    stub_put(&one, VDEVS "{2}", NULL);
    return OK;
}
