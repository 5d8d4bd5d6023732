/* Answers of libcndev that a table cannot give. */
#ifndef STUB_CNDEV_H
#define STUB_CNDEV_H

#include "engine.h"
#include "records.h"

enum { OK = 0, BAD_VERSION = 3, BAD_ARGUMENT = 5, NOT_FOUND = 14, IN_USE = 15, TIMED_OUT = 17 };
enum { DUPLICATE = 16, UNSUPPORTED = 10 };

/* cards.c */
int cndev_version(int version);
long long cndev_base(void); /* handle of card 0 */
long long cndev_number(const char *path, long long otherwise); /* of a line without keys */
int cndev_handle(int index, int32_t *to);
int cndev_incidents(struct call *call, struct HealthV2 *to);
int cndev_ports(struct call *call);
int cndev_retired(struct call *call, struct RetiredPages *to);
int cndev_listen(void **to);
int cndev_register(struct call *call);
int cndev_wait(struct Event *to, int timeout_ms);

int cndev_ecc_modes(struct call *call, struct Mode *now, struct Mode *pending);
int cndev_directions(struct call *call, int *inbound, int *outbound);

/* counters.c */
int cndev_fields(struct call *call, int number, struct FieldValue *values);
int cndev_has_counters(struct call *call, uint8_t *to);
int cndev_new_sample(void **to);
int cndev_free_sample(void *sample);
int cndev_take_sample(struct call *call, void *sample);
int cndev_means(struct MpmRequest *request);

/* slices.c */
int cndev_set_mode(struct call *call, const struct Mode *to);
int cndev_slices(struct call *call, int *number, struct SMlu *to);
int cndev_profile_ids(struct call *call, struct ProfIds *to);
int cndev_profile(struct call *call, struct Prof *to);
int cndev_add_profile(struct call *call, const struct Set *wanted, int *id);
int cndev_drop_profile(struct call *call);
int cndev_add_slice(struct call *call, int32_t *to);
int cndev_drop_slice(int32_t slice);
int cndev_set_slice(int32_t slice, const struct Set *wanted);

#endif
