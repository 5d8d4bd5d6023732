/* Values of the scenario into the library's structs. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void stub_expand(const struct call *call, const char *path, char *to, size_t room) {
    size_t length = 0;
    for (; *path && length + 24 < room; path++) {
        if (*path == '{' && path[1] && path[2] == '}') {
            length += (size_t)snprintf(to + length, room - length, "%lld", call->keys[path[1] - '0']);
            path += 2;
        } else {
            to[length++] = *path;
        }
    }
    to[length] = 0;
}

int stub_text(const struct call *call, const char *path, char *to, size_t room) {
    char expanded[STUB_PATH];
    stub_expand(call, path, expanded, sizeof expanded);
    stub_lock();
    const char *found = stub_find(expanded);
    if (found) snprintf(to, room, "%s", found);
    stub_unlock();
    return found != NULL;
}

int stub_number(const struct call *call, const char *path, int base, long long *to) {
    char value[STUB_VALUE];
    if (!stub_text(call, path, value, sizeof value)) return 0;
    *to = strtoll(value, NULL, base);
    return 1;
}

int stub_numbers(const struct call *call, const char *path, int base, int *to, int room) {
    char value[STUB_VALUE], *save;
    int count = 0;
    if (!stub_text(call, path, value, sizeof value)) return -1;
    for (char *word = strtok_r(value, ",", &save); word && count < room; word = strtok_r(NULL, ",", &save))
        to[count++] = (int)strtoll(word, NULL, base);
    return count;
}

/* Cut out one part of `a:b:c`; 0: there is no such part. */
static int cut(char *value, int part, char separator) {
    char *from = value;
    for (int i = 0; i < part; i++) {
        from = strchr(from, separator);
        if (!from) return 0;
        from++;
    }
    char *end = strchr(from, separator);
    if (end) *end = 0;
    memmove(value, from, strlen(from) + 1);
    return *value != 0;
}

static void store(char *to, const struct fill *fill, const char *word) {
    if (fill->kind == STUB_FLOAT) {
        double real = strtod(word, NULL) * fill->scale;
        float small = (float)real;
        memcpy(to, fill->size == sizeof small ? (void *)&small : (void *)&real, fill->size);
        return;
    }
    long long whole = fill->kind == STUB_UNSIGNED ? (long long)strtoull(word, NULL, fill->base)
                                                  : strtoll(word, NULL, fill->base);
    if (fill->scale != 1.0) whole = (long long)((double)whole * fill->scale);
    memcpy(to, &whole, fill->size); /* little-endian, as every machine these libraries run on */
}

static void store_all(char *to, const struct fill *fill, char *value) {
    if (fill->kind == STUB_CHARS) { /* no NUL behind a text that fills its room */
        strncpy(to, value, (size_t)fill->count);
        return;
    }
    char *from = value;
    for (int i = 0; i < (fill->count ? fill->count : 1) && from; i++) {
        store(to + (size_t)i * fill->size, fill, from);
        from = strchr(from, fill->count ? fill->separator : '\n');
        if (from) from++;
    }
}

static int read_value(const struct call *call, const struct fill *fill, char *value, size_t room) {
    int found = 1;
    if (!strcmp(fill->path, "#")) snprintf(value, room, "%lld", call->keys[call->key_count - 1]);
    else if (*fill->path == '=') snprintf(value, room, "%s", call->item ? call->item : "");
    else found = stub_text(call, fill->path, value, room);
    if (found && fill->part >= 0) found = cut(value, fill->part, fill->separator);
    if (!found && fill->otherwise) snprintf(value, room, "%s", fill->otherwise);
    return found || fill->otherwise;
}

int stub_fill(struct call *call, void *to, const struct fill *fills, int count) {
    char value[STUB_VALUE];
    for (int i = 0; i < count; i++) {
        if (!read_value(call, &fills[i], value, sizeof value)) return stub_unsupported;
        store_all((char *)to + fills[i].offset, &fills[i], value);
    }
    return 0;
}

int stub_string(const struct call *call, const struct fill *from, char *to, size_t room) {
    char value[STUB_VALUE];
    if (!read_value(call, from, value, sizeof value)) return stub_unsupported;
    if (strlen(value) >= room) return stub_too_small;
    strcpy(to, value);
    return 0;
}

int stub_each(struct call *call, const char *prefix, void *to, size_t size, int *number,
              const struct fill *fills, int count) {
    long long ids[STUB_ITEMS];
    char path[STUB_PATH], value[STUB_VALUE];
    int found = stub_ids(call, prefix, ids, STUB_ITEMS), room = *number, code = 0;
    int last = call->key_count++;
    *number = found;
    if (found > room || (found && !to)) return stub_too_small;
    for (int i = 0; i < found && !code; i++) {
        snprintf(path, sizeof path, "%s{%d}", prefix, last);
        call->keys[last] = ids[i];
        if (!stub_text(call, path, value, sizeof value)) continue;
        call->item = value;
        code = stub_fill(call, (char *)to + (size_t)i * size, fills, count);
    }
    call->item = NULL;
    return code;
}
