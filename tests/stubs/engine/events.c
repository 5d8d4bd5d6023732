/* Events: a thread is woken by the kernel when a line is appended to <scenario>.events. */
#define _GNU_SOURCE
#include "engine.h"

#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WAITING = 1024 };

static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived;
static char *queue[WAITING];
static unsigned put_at, got_at;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void (*deliver_to)(char *line);
static int watch_fd = -1;
static off_t read_until;
static unsigned woken; /* times that something changed in the scenario's folder */

static void keep(char *line) {
    pthread_mutex_lock(&queue_mutex);
    if (put_at - got_at < WAITING) queue[put_at++ % WAITING] = strdup(line);
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&queue_mutex);
}

static void read_new(const char *path) {
    static char text[64 * 1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got; fd >= 0 && (got = pread(fd, text, sizeof text - 1, read_until)) > 0;) {
        char *line = text, *end;
        text[got] = 0;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            if (*line) (deliver_to ? deliver_to : keep)(line);
        }
        if (line == text) break; /* the line is still being written */
        read_until += line - text;
    }
    if (fd >= 0) close(fd);
}

/* The folder tells that a file was put there; only the events are watched for what is added. */
static void *watch(void *path) {
    char events[4096];
    for (int watched = 0;;) {
        watched = watched || inotify_add_watch(watch_fd, path, IN_MODIFY) >= 0;
        read_new(path);
        if (read(watch_fd, events, sizeof events) <= 0) return NULL;
        pthread_mutex_lock(&queue_mutex);
        woken++;
        pthread_cond_broadcast(&arrived);
        pthread_mutex_unlock(&queue_mutex);
    }
}

static void start(void) {
    static char path[4096], folder[4096];
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&arrived, &clock);
    if (!stub_file(".events", path, sizeof path)) return;
    struct stat now;
    read_until = stat(path, &now) ? 0 : now.st_size; /* what was before is history */
    snprintf(folder, sizeof folder, "%s", path);
    watch_fd = inotify_init1(IN_CLOEXEC);
    if (inotify_add_watch(watch_fd, dirname(folder), IN_CREATE | IN_MOVED_TO) < 0) return;
    pthread_t thread;
    if (!pthread_create(&thread, NULL, watch, path)) pthread_detach(thread);
}

void stub_listen(void (*deliver)(char *line)) {
    if (deliver) deliver_to = deliver;
    pthread_once(&once, start);
}

static struct timespec after(int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long long ns = until.tv_nsec + (long long)timeout_ms * 1000000;
    until.tv_sec += ns / 1000000000, until.tv_nsec = (long)(ns % 1000000000);
    return until;
}

void stub_idle(unsigned *seen, int timeout_ms) {
    stub_listen(NULL);
    struct timespec until = after(timeout_ms);
    pthread_mutex_lock(&queue_mutex);
    while (*seen == woken && !pthread_cond_timedwait(&arrived, &queue_mutex, &until)) {}
    *seen = woken;
    pthread_mutex_unlock(&queue_mutex);
}

int stub_wait(char *line, size_t room, int timeout_ms) {
    struct timespec until = after(timeout_ms);
    stub_listen(NULL);
    pthread_mutex_lock(&queue_mutex);
    int late = 0;
    while (put_at == got_at && !late)
        late = pthread_cond_timedwait(&arrived, &queue_mutex, &until) != 0;
    int found = put_at != got_at;
    if (found) {
        snprintf(line, room, "%s", queue[got_at % WAITING]);
        free(queue[got_at++ % WAITING]);
    }
    pthread_mutex_unlock(&queue_mutex);
    return found;
}
