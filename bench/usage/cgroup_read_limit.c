/* The least work that reads the same files: kept descriptors, one pread a file, the same keys. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { COUNTER, THROTTLING_V1, CPU_STAT_V2, MEMORY_NUMA_V1, MEMORY_STAT_V2, DIRECTORY };

struct file {
    int fd;
    enum kind kind;
    unsigned long long value[3];
};

static struct file *files;
static size_t count, room;

static unsigned long long after(const char *data, size_t size, const char *key, const char **end)
{
    const char *at = memmem(data, size, key, strlen(key));
    if (at == NULL)
        return 0;
    return strtoull(at + strlen(key), (char **)end, 10);
}

static void parse(struct file *f, const char *data, size_t size)
{
    const char *at = data;
    switch (f->kind) {
    case COUNTER:
        f->value[0] = strtoull(data, NULL, 10);
        break;
    case THROTTLING_V1:
        f->value[0] = after(data, size, "nr_periods ", &at);
        f->value[1] = after(at, size - (size_t)(at - data), "nr_throttled ", &at);
        break;
    case CPU_STAT_V2:
        f->value[0] = after(data, size, "usage_usec ", &at);
        f->value[1] = after(at, size - (size_t)(at - data), "nr_periods ", &at);
        f->value[2] = after(at, size - (size_t)(at - data), "nr_throttled ", &at);
        break;
    case MEMORY_NUMA_V1:
        f->value[0] = after(data, size, "hierarchical_total=", &at);
        f->value[1] = after(at, size - (size_t)(at - data), "hierarchical_anon=", &at);
        f->value[1] += after(at, size - (size_t)(at - data), "hierarchical_unevictable=", &at);
        break;
    case MEMORY_STAT_V2:
        f->value[0] = after(data, size, "inactive_anon ", &at);
        f->value[0] += after(at, size - (size_t)(at - data), "\nactive_anon ", &at);
        f->value[1] = after(at, size - (size_t)(at - data), "inactive_file ", &at);
        f->value[1] += after(at, size - (size_t)(at - data), "\nactive_file ", &at);
        f->value[0] += after(at, size - (size_t)(at - data), "unevictable ", &at);
        f->value[1] += f->value[0];
        break;
    case DIRECTORY:
        break;
    }
}

/* Follow one more file; return 0, or -1 if it cannot be opened. */
int reader_add(const char *path, int kind)
{
    if (count == room) {
        room = room ? 2 * room : 1024;
        files = realloc(files, room * sizeof *files);
        if (files == NULL)
            return -1;
    }
    int fd = open(path, kind == DIRECTORY ? O_RDONLY | O_DIRECTORY | O_CLOEXEC : O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    files[count++] = (struct file){.fd = fd, .kind = (enum kind)kind};
    return 0;
}

/* Read every file once; return how many could not be read. */
int reader_cycle(void)
{
    static char data[4096];
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        struct file *f = &files[i];
        if (f->kind == DIRECTORY) {
            struct stat found;
            if (fstat(f->fd, &found) != 0)
                failed++;
            else
                f->value[0] = found.st_nlink;
            continue;
        }
        ssize_t size = pread(f->fd, data, sizeof data - 1, 0);
        if (size <= 0) {
            failed++;
            continue;
        }
        data[size] = '\0';
        parse(f, data, (size_t)size);
    }
    return failed;
}

/* Return a value of the file that was added at that place; without it nobody would need values. */
unsigned long long reader_value(size_t file, int value)
{
    return files[file].value[value];
}

/* Close everything. */
void reader_reset(void)
{
    for (size_t i = 0; i < count; i++)
        close(files[i].fd);
    free(files);
    files = NULL;
    count = room = 0;
}
