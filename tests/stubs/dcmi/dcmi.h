/* Answers of libdcmi that a table cannot give. */
#ifndef STUB_DCMI_H
#define STUB_DCMI_H

#include "engine.h"
#include "records.h"

enum { OK = 0, BAD_PARAMETER = -8001, GONE = -8008, UNSUPPORTED = -8255 };

/* chips.c */
int dcmi_cards(int *number, int *list, int room);
int dcmi_phy_of(unsigned logic, unsigned *to);
int dcmi_codes(struct call *call, int *number, unsigned *list, unsigned room);
int dcmi_rate(struct call *call, unsigned *to);
int dcmi_processes(struct call *call, struct proc_mem_info *to, int *number);
int dcmi_address(struct call *call, struct ip_addr *ip, struct ip_addr *mask);
int dcmi_listen(void *callback);

/* vdevs.c */
int dcmi_info(struct call *call, int main, int sub, void *to, unsigned *size);
int dcmi_create(struct call *call, const struct create_vdev_res *wanted,
                struct create_vdev_out *made);
int dcmi_destroy(struct call *call);

#endif
