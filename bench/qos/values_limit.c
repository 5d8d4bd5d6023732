/* A plain writer that keeps files at desired texts: descriptors for reading stay open, and of each
 * file one pread is made; for a file that differs open, write, close and a second pread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 64 };

struct file {
    char *path;
    int fd;
    char desired[ROOM];
    size_t size;
};

static struct file *files;
static size_t count, room;

int writer_add(const char *path)
{
    struct file *f;
    if (count == room) {
        room = room ? room * 2 : 1024;
        files = realloc(files, room * sizeof *files);
        if (files == NULL)
            return -1;
    }
    f = &files[count];
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    f->path = strdup(path);
    f->size = 0;
    if (f->fd < 0 || f->path == NULL)
        return -1;
    count++;
    return 0;
}

void writer_want(const char *text)
{
    for (size_t i = 0; i < count; i++) {
        files[i].size = strlen(text);
        memcpy(files[i].desired, text, files[i].size);
    }
}

/* Return how many files were written; -1 if one could not be. */
int writer_cycle(void)
{
    char data[ROOM];
    int written = 0;
    for (size_t i = 0; i < count; i++) {
        struct file *f = &files[i];
        ssize_t size = pread(f->fd, data, sizeof data, 0);
        if (size == (ssize_t)f->size && memcmp(data, f->desired, f->size) == 0)
            continue;
        int fd = open(f->path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (fd < 0 || write(fd, f->desired, f->size) != (ssize_t)f->size)
            return -1;
        close(fd);
        size = pread(f->fd, data, sizeof data, 0);
        if (size != (ssize_t)f->size || memcmp(data, f->desired, f->size) != 0)
            return -1;
        written++;
    }
    return written;
}

void writer_reset(void)
{
    for (size_t i = 0; i < count; i++) {
        close(files[i].fd);
        free(files[i].path);
    }
    count = 0;
}
