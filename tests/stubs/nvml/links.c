/* libnvidia-ml: NVLinks, how far cards are apart, and the fabric behind them. */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>

static int linked(const struct call *call) { return (int)nvml_get(call, "link.{0}.{1}", 0); }

int nvml_link(const struct call *call, unsigned *to) {
    if (linked(call)) return nvml_member(call, "link.{0}.{1}.state", to);
    return call->keys[1] ? INVALID : UNSUPPORTED;
}

int nvml_link_type(const struct call *call, unsigned *to) {
    *to = (unsigned)nvml_get(call, "link.{0}.{1}.type", 255);
    return linked(call) ? OK : INVALID;
}

int nvml_remote(const struct call *call, struct Pci *to) {
    if (!linked(call)) return INVALID;
    memset(to, 0xAA, sizeof *to); /* only the bus id is worth anything */
    memset(to->bus_id, 0, sizeof to->bus_id);
    return stub_text(call, "link.{0}.{1}.remote", to->bus_id, sizeof to->bus_id) ? OK : UNSUPPORTED;
}

int nvml_ancestor(const struct call *call, const void *other, unsigned *to) {
    struct call both = nvml_about(call->keys[0], (const char *)other - (char *)nvml_card_handle(0));
    if (both.keys[1] < 0 || both.keys[1] >= MAX_GPUS) return INVALID;
    return nvml_member(&both, "ancestor.{0}.{1}", to);
}

static void read_uuid(const struct call *call, unsigned char *to) {
    char text[40] = {0};
    stub_text(call, "fabric.{0}.uuid", text, sizeof text);
    for (int i = 0; i < 16 && text[2 * i] && text[2 * i + 1]; i++) {
        char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        to[i] = (unsigned char)strtol(digits, NULL, 16);
    }
}

int nvml_fabric(const struct call *call, struct FabricV1 *to) {
    if (!nvml_get(call, "fabric.{0}", 0)) return UNSUPPORTED;
    memset(to, 0, sizeof *to);
    read_uuid(call, to->uuid);
    to->state = (unsigned char)nvml_get(call, "fabric.{0}.state", 0);
    to->status = (unsigned)nvml_get(call, "fabric.{0}.status", 0);
    to->clique = (unsigned)nvml_get(call, "fabric.{0}.clique", 0);
    return OK;
}

int nvml_fabric_v(const struct call *call, struct FabricV3 *to) {
    int third = to->version == 0x03000028 && stub_driver > 570;
    if (!third && to->version != 0x02000024) return BAD_VERSION;
    struct FabricV1 first;
    int code = nvml_fabric(call, &first);
    if (code) return code;
    memcpy(to->uuid, first.uuid, sizeof to->uuid);
    to->status = first.status, to->clique = first.clique, to->state = first.state;
    to->mask = (unsigned)nvml_get(call, "fabric.{0}.mask", 0);
    if (third) to->summary = (unsigned char)nvml_get(call, "fabric.{0}.summary", 0);
    return OK;
}
