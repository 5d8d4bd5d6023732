/* libdcmi: cards, faults, processes, addresses, events. */
#include "dcmi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CARDS = 64 };

static struct call about(long long card, long long chip) {
    struct call one = {.key_count = 2, .keys = {card, chip}};
    return one;
}

int dcmi_cards(int *number, int *list, int room) {
    struct call nobody = {0};
    long long counted;
    int found = stub_numbers(&nobody, "card_list", 10, list, room);
    if (found < 0) return UNSUPPORTED;
    *number = stub_number(&nobody, "card_count", 10, &counted) ? (int)counted : found;
    return OK;
}

int dcmi_phy_of(unsigned logic, unsigned *to) {
    struct call nobody = {0};
    int cards[CARDS], count = stub_numbers(&nobody, "card_list", 10, cards, CARDS);
    for (int i = 0; i < count; i++)
        for (int chip = 0; chip < 4; chip++) {
            struct call one = about(cards[i], chip);
            long long number, phy;
            if (!stub_number(&one, "chip.{0}.{1}.logic", 10, &number)) continue;
            if (number != (long long)logic) continue;
            if (!stub_number(&one, "chip.{0}.{1}.phy", 10, &phy)) return UNSUPPORTED;
            *to = (unsigned)phy;
            return OK;
        }
    return -8007;
}

int dcmi_codes(struct call *call, int *number, unsigned *list, unsigned room) {
    char value[STUB_VALUE], *save;
    if (!stub_text(call, "chip.{0}.{1}.health", value, sizeof value)) return UNSUPPORTED;
    int count = 0;
    if (!stub_text(call, "chip.{0}.{1}.codes", value, sizeof value)) *value = 0;
    for (char *word = strtok_r(value, ",", &save); word && count < (int)room;
         word = strtok_r(NULL, ",", &save))
        list[count++] = (unsigned)strtoul(word, NULL, 16);
    *number = count;
    return OK;
}

int dcmi_rate(struct call *call, unsigned *to) {
    long long percent;
    const char *path = call->keys[2] == 2 ? "chip.{0}.{1}.util" : "chip.{0}.{1}.util_{2}";
    if (!stub_number(call, path, 10, &percent)) return UNSUPPORTED;
    *to = (unsigned)percent;
    return OK;
}

int dcmi_processes(struct call *call, struct proc_mem_info *to, int *number) {
    long long pids[STUB_ITEMS], bytes;
    int found = stub_ids(call, "chip.{0}.{1}.proc.", pids, STUB_ITEMS);
    *number = found > 32 ? 32 : found;
    for (int i = 0; i < *number; i++) {
        struct call one = {.key_count = 3, .keys = {call->keys[0], call->keys[1], pids[i]}};
        to[i].pid = (int32_t)pids[i];
        to[i].bytes = stub_number(&one, "chip.{0}.{1}.proc.{2}", 10, &bytes) ? (uint64_t)bytes : 0;
    }
    return OK;
}

int dcmi_address(struct call *call, struct ip_addr *ip, struct ip_addr *mask) {
    char value[STUB_VALUE];
    unsigned a, b, c, d;
    if (!stub_text(call, "chip.{0}.{1}.ip", value, sizeof value)) return -8023;
    if (sscanf(value, "%u.%u.%u.%u", &a, &b, &c, &d) != 4) return BAD_PARAMETER;
    memset(ip, 0, sizeof *ip), memset(mask, 0, sizeof *mask);
    ip->addr[0] = (uint8_t)a, ip->addr[1] = (uint8_t)b;
    ip->addr[2] = (uint8_t)c, ip->addr[3] = (uint8_t)d;
    memset(mask->addr, 255, 3);
    return OK;
}

static void (*callback)(struct dcmi_event *);

static void deliver(char *line) {
    static struct dcmi_event event;
    unsigned code, severity, assertion;
    long long card, chip, logic;
    if (sscanf(line, "%lld %lld %x %u %u", &card, &chip, &code, &severity, &assertion) != 5) return;
    struct call one = about(card, chip);
    memset(&event, 0, sizeof event);
    event.fault.event_id = code;
    event.fault.deviceid = stub_number(&one, "chip.{0}.{1}.logic", 10, &logic) ? (uint16_t)logic : 999;
    event.fault.severity = (uint8_t)severity, event.fault.assertion = (uint8_t)assertion;
    event.fault.raised = (uint64_t)time(NULL);
    snprintf(event.fault.event_name, sizeof event.fault.event_name, "event of the stub");
    if (callback) callback(&event);
}

int dcmi_listen(void *called) {
    memcpy(&callback, &called, sizeof callback); /* C has no cast between the two kinds */
    stub_listen(deliver);
    return OK;
}
