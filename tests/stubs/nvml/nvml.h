/* Answers of libnvidia-ml that a table cannot give. */
#ifndef STUB_NVML_H
#define STUB_NVML_H

#include "engine.h"
#include "records.h"

extern const int stub_driver; /* the driver branch that is played */

enum { MAX_GPUS = 16, MAX_MIGS = 8, MAX_ITEMS = 256 };
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10 };
enum { BAD_VERSION = 25, NOWHERE = 999 };

typedef void mig; /* a card, or an instance of one */
typedef struct gpm_request gpm_request;
typedef uint64_t u64;

long long nvml_card(void *device);
long long nvml_owner(mig *device);

/* Values: of a card (key 0) or of one of its instances (keys 0 and 1) */
struct call nvml_about(long long first, long long second);
long long nvml_get(const struct call *call, const char *path, long long otherwise);
int nvml_member(const struct call *call, const char *path, unsigned *to);
int nvml_slot(const void *device); /* -1: no instance */
void *nvml_card_handle(long long card);
void *nvml_mig_handle(long long card, long long slot);
int nvml_next(char **rest, char *word, size_t room); /* the next of `a;b;c`; 0: nothing in it */

/* cards.c */
const char *nvml_error(int code);
int nvml_version(char *to, unsigned room);
int nvml_count(unsigned *to);
int nvml_handle(const struct call *call, void **to);
int nvml_by_uuid(const char *uuid, void **to);
int nvml_uuid(const struct call *call, mig *instance, char *to, unsigned room);
int nvml_index(const struct call *call, unsigned *to);
int nvml_pci(const struct call *call, struct Pci *to);
int nvml_memory(const struct call *call, struct MemoryV1 *first, struct MemoryV2 *second);
int nvml_any_memory(const struct call *call, mig *instance, struct MemoryV1 *to);
int nvml_platform(const struct call *call, struct Platform *to);

/* links.c */
int nvml_link(const struct call *call, unsigned *to);
int nvml_link_type(const struct call *call, unsigned *to);
int nvml_remote(const struct call *call, struct Pci *to);
int nvml_ancestor(const struct call *call, const void *other, unsigned *to);
int nvml_fabric(const struct call *call, struct FabricV1 *to);
int nvml_fabric_v(const struct call *call, struct FabricV3 *to);

/* lists.c */
int nvml_processes(const struct call *call, unsigned *count, struct Process *to,
                   struct OldProcess *old, char list);
int nvml_busy(const struct call *call, struct Busy *to, unsigned *count, u64 after);
int nvml_samples(const struct call *call, unsigned *type, unsigned *count, struct Sample *to);
int nvml_fields(const struct call *call, int count, struct FieldValue *to);

/* slices.c */
int nvml_mig_mode(const struct call *call, unsigned *now, unsigned *pending);
int nvml_most(const struct call *call, unsigned *to);
int nvml_mig(const struct call *call, void **to);
int nvml_mig_member(mig *instance, const char *member, unsigned *to);
int nvml_parent(mig *instance, void **to);
int nvml_attributes(mig *instance, struct Attributes *to);
int nvml_by_gi(const struct call *call, void **to);
int nvml_gi_info(mig *instance, struct GiInfo *to);
int nvml_profile(const struct call *call, struct GiProfileV1 *first, struct GiProfileV2 *second);
int nvml_placements(const struct call *call, struct Placement *to, unsigned *count);
int nvml_instances(const struct call *call, void **to, unsigned *count);

/* events.c */
int nvml_set(void **to);
int nvml_free_set(void);
int nvml_types(const struct call *call, u64 *to);
int nvml_register(const struct call *call);
int nvml_wait(struct EventData *to, unsigned timeout_ms);
int nvml_system_set(struct SetRequest *to);
int nvml_system_wait(struct WaitRequest *to);

/* counters.c */
int nvml_gpm_support(const struct call *call, struct GpmSupport *to);
int nvml_gpm_alloc(void **to);
int nvml_gpm_free(void *sample);
int nvml_gpm_get(const struct call *call, long long gi, void *sample);
int nvml_gpm_metrics(gpm_request *request);
int nvml_repair(const struct call *call, struct Repair *to);

#endif
