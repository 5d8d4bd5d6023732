/* The scenario and what calls changed since: two tables of `<path> <value>` lines. */
#define _GNU_SOURCE
#include "engine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct line { char *path, *value; int order, used; };
struct table { const char *suffix; char *text; struct line *lines; int count, calls; struct stat seen; };

static struct table told = {.suffix = ""}, changed = {.suffix = ".state"}; /* the latter wins */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void stub_lock(void) { pthread_mutex_lock(&mutex); }
void stub_unlock(void) { pthread_mutex_unlock(&mutex); }

/* The environment names the scenario; else it stands beside this library. */
const char *stub_file(const char *suffix, char *to, size_t room) {
    const char *scenario = getenv(stub_scenario_env);
    Dl_info self;
    if (scenario) {
        snprintf(to, room, "%s%s", scenario, suffix);
        return to;
    }
    if (!dladdr((void *)stub_file, &self) || !strchr(self.dli_fname, '/')) return NULL;
    int length = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
    snprintf(to, room, "%.*s/scenario%s", length, self.dli_fname, suffix);
    return to;
}

static int by_path(const void *a, const void *b) {
    const struct line *one = a, *two = b;
    int order = strcmp(one->path, two->path);
    return order ? order : one->order - two->order;
}

/* \xNN is that byte: answers need not be text */
static void unescape(char *text) {
    char *to = text;
    for (char *from = text; *from; from++) {
        if (from[0] == '\\' && from[1] == 'x' && from[2] && from[3]) {
            char digits[3] = {from[2], from[3], 0};
            *to++ = (char)strtol(digits, NULL, 16), from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

static void parse(struct table *table) {
    int room = 0;
    for (char *save, *line = strtok_r(table->text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        line += strspn(line, " \t");
        char *comment = strstr(line, " #");
        if (!*line || *line == '#') continue;
        if (comment) *comment = 0;
        char *value = line + strcspn(line, " \t");
        if (*value) *value++ = 0;
        value += strspn(value, " \t");
        for (char *end = value + strlen(value); end > value && strchr(" \t\r", end[-1]);) *--end = 0;
        unescape(value);
        if (table->count == room) {
            room = room ? 2 * room : 256;
            table->lines = realloc(table->lines, (size_t)room * sizeof *table->lines);
        }
        table->lines[table->count] = (struct line){line, value, table->count, 0};
        table->calls += !strncmp(line, "call.", 5);
        table->count++;
    }
    if (table->count) qsort(table->lines, (size_t)table->count, sizeof *table->lines, by_path);
}

static void load(struct table *table) {
    char path[4096];
    struct stat now = {0};
    const struct stat *seen = &table->seen;
    if (!stub_file(table->suffix, path, sizeof path) || stat(path, &now)) now.st_ino = 0;
    if (now.st_ino == seen->st_ino && now.st_size == seen->st_size
        && !memcmp(&now.st_mtim, &seen->st_mtim, sizeof now.st_mtim)) return;
    free(table->text), free(table->lines);
    table->text = NULL, table->lines = NULL, table->count = table->calls = 0;
    table->seen = now;
    int fd = now.st_ino ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    table->text = calloc(1, (size_t)now.st_size + 1);
    if (read(fd, table->text, (size_t)now.st_size) < 0) *table->text = 0;
    close(fd);
    parse(table);
}

void stub_reload(void) { load(&told), load(&changed); }

int stub_behaves(void) { return told.calls + changed.calls; }

static struct line *search(struct table *table, const char *path) {
    int low = 0, high = table->count;
    while (low < high) { /* the first one above the path; the last of equal ones is before it */
        int middle = (low + high) / 2;
        if (strcmp(table->lines[middle].path, path) <= 0) low = middle + 1;
        else high = middle;
    }
    struct line *found = low ? &table->lines[low - 1] : NULL;
    return found && !strcmp(found->path, path) ? found : NULL;
}

static struct line *find(const char *path, struct table **of) {
    struct line *line = search(*of = &changed, path);
    if (!line) line = search(*of = &told, path);
    return line && *line->value ? line : NULL;
}

const char *stub_find(const char *path) {
    struct table *of;
    struct line *line = find(path, &of);
    return line ? line->value : NULL;
}

/* Of equal lines the last counts; one that is used up leaves it to the one before. */
const char *stub_take(const char *path) {
    struct table *of;
    struct line *line = find(path, &of);
    for (; line && line >= of->lines && !strcmp(line->path, path); line--) {
        const char *limit = strstr(line->value, " x");
        if (limit && line->used >= atoi(limit + 2)) continue;
        line->used++;
        return line->value;
    }
    return NULL;
}

static int by_number(const void *a, const void *b) {
    long long one = *(const long long *)a, two = *(const long long *)b;
    return (one > two) - (one < two);
}

static int collect(const struct table *table, const char *prefix, long long *to, int room, int n) {
    size_t length = strlen(prefix);
    for (int i = 0; i < table->count && n < room; i++) {
        char *end, *rest = table->lines[i].path + length;
        if (strncmp(table->lines[i].path, prefix, length) || !*rest) continue;
        long long id = strtoll(rest, &end, 10);
        if (!*end && stub_find(table->lines[i].path)) to[n++] = id;
    }
    return n;
}

int stub_ids(const struct call *call, const char *prefix, long long *to, int room) {
    char path[STUB_PATH];
    stub_expand(call, prefix, path, sizeof path);
    stub_lock();
    int n = collect(&changed, path, to, room, collect(&told, path, to, room, 0)), unique = 0;
    stub_unlock();
    qsort(to, (size_t)n, sizeof *to, by_number);
    for (int i = 0; i < n; i++)
        if (!i || to[i] != to[i - 1]) to[unique++] = to[i];
    return unique;
}

void stub_put(const struct call *call, const char *path, const char *value) {
    char file[4096], expanded[STUB_PATH], line[STUB_PATH + STUB_VALUE];
    if (!stub_file(".state", file, sizeof file)) return;
    stub_expand(call, path, expanded, sizeof expanded);
    int length = snprintf(line, sizeof line, "%s %s\n", expanded, value ? value : "");
    stub_lock();
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, line, (size_t)length) == length) changed.seen.st_ino = 0;
    if (fd >= 0) close(fd);
    stub_reload();
    stub_unlock();
}
