/* What every generated stub library stands on: a scenario text, calls that it may upset, events.
 *
 * The generated source defines what is `extern` here; see README.md for the scenario's lines.
 */
#ifndef STUB_ENGINE_H
#define STUB_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum { STUB_KEYS = 8, STUB_OUTS = 4, STUB_PATH = 192, STUB_VALUE = 1024, STUB_ITEMS = 256 };

extern const char *const stub_symbols[];
extern const int stub_symbol_count;
extern const char *const stub_scenario_env; /* environment variable that names the scenario */
extern const char *const stub_trace_env;    /* and the one that names a log of all calls */
extern const int stub_unsupported;          /* answer when the scenario has no value */
extern const int stub_too_small;            /* answer when a list does not fit */
extern const int stub_bad_handle;

/* One call: whole numbers among its arguments are keys, the first of them its scope. */
struct call {
    int symbol, key_count, scope_count;
    long long keys[STUB_KEYS];
    struct { void *at; size_t bytes; } outs[STUB_OUTS];
    int code;
    const char *item; /* value of the line that an element of a list is filled from */
};

/* Count the call and do what the scenario says of it; 1: it is over, return `call->code`. */
int stub_enter(struct call *call);

/* The scenario. Paths hold {0}, {1}...: the call's keys. */
int stub_text(const struct call *call, const char *path, char *to, size_t room); /* 0: not there */
int stub_number(const struct call *call, const char *path, int base, long long *to);
int stub_numbers(const struct call *call, const char *path, int base, int *to, int room);
int stub_ids(const struct call *call, const char *prefix, long long *to, int room);
void stub_put(const struct call *call, const char *path, const char *value); /* NULL: take away */
void stub_reload(void);

enum stub_kind { STUB_SIGNED, STUB_UNSIGNED, STUB_FLOAT, STUB_CHARS };

/* Where a member of a struct comes from. */
struct fill {
    const char *path;      /* "=" the item's value, "#" its number */
    const char *otherwise; /* NULL: the call answers `unsupported` */
    size_t offset, size;   /* of one element */
    int count, kind, base, part;
    char separator;
    double scale;
};

int stub_string(const struct call *call, const struct fill *from, char *to, size_t room);
int stub_fill(struct call *call, void *to, const struct fill *fills, int count);
/* Fill an array from the lines below a prefix; `number` is room before and amount after. */
int stub_each(struct call *call, const char *prefix, void *to, size_t size, int *number,
              const struct fill *fills, int count);

/* Events: lines appended to <scenario>.events. Without `deliver` they wait for `stub_wait`. */
void stub_listen(void (*deliver)(char *line));
int stub_wait(char *line, size_t room, int timeout_ms); /* 0: none in time */
/* Wait until anything changes in the scenario's folder after what was `seen`, or time is up. */
void stub_idle(unsigned *seen, int timeout_ms);

/* For the files of the engine. */
void stub_lock(void);
void stub_unlock(void);
int stub_behaves(void); /* whether the scenario has any line about calls */
const char *stub_find(const char *path);
const char *stub_take(const char *path); /* as find; one with a limit xN is used up */
void stub_expand(const struct call *call, const char *path, char *to, size_t room);
const char *stub_file(const char *suffix, char *to, size_t room); /* beside the scenario */

#endif
