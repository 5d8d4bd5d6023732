/* NVML for tests: the part of its interface that the agent uses, played from a text.
 *
 * XPU_NVML_SCENARIO names the text, which is read again when it changes; XPU_NVML_CALLS names a
 * file that every call is appended to. Statements: see nvml_stub.py. STUB_DRIVER leaves out the
 * symbols that drivers of that branch did not have.
 */
#ifndef NVML_STUB_H
#define NVML_STUB_H

#ifndef STUB_DRIVER
#define STUB_DRIVER 999
#endif

enum { MAX_GPUS = 16, MAX_MIGS = 8, MAX_PROCS = 64, MAX_LINKS = 36, MAX_FIELDS = 64 };
enum { MAX_GPMS = 32 };
enum { MAX_PROFILES = 18, MAX_EVENTS = 512, MAX_FAULTS = 64, TEXT = 96 };
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9 };
enum { TIMED_OUT = 10, LOST = 15, BAD_VERSION = 25 };
enum { UNSET = -1 };

typedef long long number;
typedef unsigned long long u64;

struct mig { int gpu, used; char uuid[TEXT]; number gi, ci, k, cik, start, size, mb, sm; };
struct profile { int used; number id, slices, max, mb, size, starts[8]; int places; char name[TEXT]; };
struct proc { number pid, mem, sm, ts, gi, ci; int list; };
struct link { int used; number state, type; char remote[32]; };
struct field { number id, scope; int type, code; double f64; u64 whole; };
struct fabric { int used; number state, status, clique, mask, summary; unsigned char uuid[16]; };
struct gpm { number gi, id; double value; };  /* gi UNSET: of the whole card */
struct event { int gpu; number type, data, gi, ci; double at; };

struct gpu {
    int used, lost;
    char uuid[TEXT], bus[32], name[TEXT], serial[TEXT], vbios[TEXT];
    number minor, module, mem, reserved, used_mem, util_gpu, util_mem, power, temp, arch;
    number cc_major, cc_minor, virt, ecc, persistence, mode, pstate, width, max_width;
    number sm_clock, mem_clock, energy, throttle, migmode, migpending, remap[4], events;
    number addressing, numa_node, rack[4];
    number sram, repair, unrepairable, encoder, decoder, uncorrected;
    char chassis[TEXT];
    struct mig migs[MAX_MIGS];
    struct profile profiles[MAX_PROFILES];
    struct proc procs[MAX_PROCS];
    int proc_count, field_count, gpm_count;
    struct gpm gpms[MAX_GPMS];
    struct link links[MAX_LINKS];
    struct field fields[MAX_FIELDS];
    struct fabric fabric;
    number ancestors[MAX_GPUS];
};

struct fault { char symbol[TEXT]; int gpu, code, left; int kind; number ms; };
enum { FAULT_ERROR, FAULT_DELAY, FAULT_HANG, FAULT_CRASH };

struct event_data { void *device; u64 type, data; unsigned gi, ci; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

struct scenario {
    struct gpu gpus[MAX_GPUS];
    char driver[TEXT];
    number cuda, confidential, ready;
    struct event events[MAX_EVENTS];
    int event_count;
    struct event bindings[MAX_EVENTS];  /* of the system: gpu is not used */
    int binding_count;
    struct fault faults[MAX_FAULTS];
    int fault_count;
};

extern struct scenario stub;

void stub_reload(void);
/* Begin a call: read the text again if it changed, log, delay, hang, crash; return a code. */
int stub_enter(const char *symbol, const void *device, number argument);
struct gpu *stub_gpu(const void *device);  /* NULL: no card, maybe an instance */
struct mig *stub_mig(const void *device);
double stub_now_s(void);
int stub_text(char *to, unsigned room, const char *from);
int stub_number(unsigned *to, number from);

#define NO_ARGUMENT (-1)
#define ENTER(device) \
    do { int code_ = stub_enter(__func__, device, NO_ARGUMENT); if (code_) return code_; } while (0)
#define ENTER_WITH(device, argument) \
    do { int code_ = stub_enter(__func__, device, argument); if (code_) return code_; } while (0)
#define GPU(device) \
    struct gpu *gpu = stub_gpu(device); \
    if (!gpu) return INVALID

#endif
